"""The order of the members of a round: a pure function, so that no store traffic is needed to agree on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.rendezvous.entry import Entry

_NUMBERS = re.compile(r"(\d+)")


def ordered(entries: Sequence[Entry], before: Sequence[str]) -> list[Entry]:
    """The members in the order of their ranks.

    Survivors (keys of `before`, the last round in rank order) keep their order, and rank 0 stays where it was if it
    lives. Newcomers, sorted by host and then by age, take the places of those that are gone, the rest goes to the end.
    Who asked for a rank that exists gets it, the older of two first.

    Args:
        entries: the members, oldest first.
    """
    by_key = {entry.key: entry for entry in entries}
    survivors = set(before) & set(by_key)
    newcomers = iter(sorted((e for e in entries if e.key not in survivors), key=lambda e: natural(e.host)))
    places: list[Entry | None] = [by_key.get(key) for key in before]
    for place in _holes(places, survivors=bool(survivors)):
        places[place] = next(newcomers, None)
    order = [entry for entry in places if entry is not None]
    return _with_hints([*order, *newcomers])


def _holes(places: Sequence[Entry | None], survivors: bool) -> list[int]:
    """The places to fill, in turn. That of rank 0 comes last: a survivor should move up rather than a newcomer lead."""
    holes = [place for place, entry in enumerate(places) if entry is None]
    return [*holes[1:], 0] if survivors and holes[:1] == [0] else holes


def _with_hints(order: Sequence[Entry]) -> list[Entry]:
    hinted: dict[int, Entry] = {}
    for entry in order:
        if entry.rank_hint is not None and entry.rank_hint < len(order):
            hinted.setdefault(entry.rank_hint, entry)
    keys = {entry.key for entry in hinted.values()}
    others = iter([entry for entry in order if entry.key not in keys])
    return [hinted[rank] if rank in hinted else next(others) for rank in range(len(order))]


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key by which node7 comes before node66."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBERS.split(name) if part]

"""The order of the members of a round: a pure function, so that no store traffic is needed to agree on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.rendezvous.model import Entry

_DIGITS = "0123456789"
_NUMBERS = re.compile(r"([0-9]+)")


def ordered(entries: Sequence[Entry], before: Sequence[str]) -> list[Entry]:
    """The members in the order of their ranks.

    Survivors (keys of `before`, the last round in rank order) keep their order, and rank 0 stays where it was if it
    lives; else the first survivor moves up to it, so that no newcomer gets it. Newcomers, sorted by host and then by
    age, take the places of those that are gone; the rest go to the end. A node that asked for an existing rank gets it;
    of two, the one that would have the lower rank without asking.

    Args:
        entries: the members, oldest first.
    """
    by_key = {entry.key: entry for entry in entries}
    survivors = set(before) & set(by_key)
    newcomers = iter(sorted((e for e in entries if e.key not in survivors), key=lambda e: natural(e.host)))
    places = _with_first([by_key.get(key) for key in before])
    order = [entry for place in places if (entry := place or next(newcomers, None)) is not None]
    return _with_hints([*order, *newcomers])


def _with_first(places: list[Entry | None]) -> list[Entry | None]:
    """The places after the first survivor has moved up to that of rank 0, if that is empty."""
    first = next((place for place, entry in enumerate(places) if entry is not None), 0)
    if first:
        places[0], places[first] = places[first], None
    return places


def _with_hints(order: Sequence[Entry]) -> list[Entry]:
    hinted: dict[int, Entry] = {}
    for entry in order:
        if entry.rank_hint is not None and 0 <= entry.rank_hint < len(order):
            hinted.setdefault(entry.rank_hint, entry)
    keys = {entry.key for entry in hinted.values()}
    others = iter([entry for entry in order if entry.key not in keys])
    return [hinted[rank] if rank in hinted else next(others) for rank in range(len(order))]


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key by which node7 comes before node66."""
    return [_digits(part) if part[0] in _DIGITS else (1, 0, part) for part in _NUMBERS.split(name) if part]


def _digits(part: str) -> tuple[int, int, str]:
    """Of two numbers without leading zeros the longer is greater; how long they may be does not matter."""
    digits = part.lstrip("0")
    return 0, len(digits), digits

"""The roster, which contains all entries as one observer sees them. The functions determine which nodes may take part,
and the rank order of a round's members. All functions are pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.interfaces.node import Candidate
from elastic_core.text import natural_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Instant
    from elastic_core.interfaces.node import RankPolicy
    from elastic_core.rendezvous.model import Entry, State


@dataclass(frozen=True)
class ObservedEntry:
    """An entry as one observer sees it.

    Args:
        late: whether the node's heartbeat is late; a late node is considered lost.
        since: when the observer first saw the entry's key, on the observer's clock.
        ended: whether the node is late because its agent is known to have ended.
    """

    entry: Entry
    late: bool
    since: Instant
    ended: bool = False


Roster = tuple[ObservedEntry, ...]
"""The entries that one observer sees, oldest first."""


def holders(roster: Roster, state: State) -> dict[str, Entry]:
    """Return the owner of each node name. If two live agents share a name, a surviving member owns the name, because
    the other agent may have been suspended and replaced. Otherwise, the older agent that is ready owns the name."""
    names: dict[str, Entry] = {}
    for seen in roster:
        if not seen.late:
            first = names.setdefault(seen.entry.node, seen.entry)
            if first is not seen.entry and _claim(seen.entry, state) > _claim(first, state):
                names[seen.entry.node] = seen.entry
    return names


def _claim(entry: Entry, state: State) -> int:
    """Return the strength of the node's claim to its name, from 0 to 2."""
    if state.seated(entry.key) and entry.key not in state.gone:
        return 2
    return int(is_ready(entry, state))


def alive(roster: Roster, state: State) -> list[Entry]:
    """Return the nodes that are not late and own their names. A node whose name belongs to another node has to wait
    until the other node has left. If that takes too long, the waiting node is refused."""
    names = holders(roster, state)
    return [seen.entry for seen in roster if not seen.late and names[seen.entry.node] is seen.entry]


def is_ready(entry: Entry, state: State) -> bool:
    """Return whether the node waits for the next round and knows the last one. If an entry names a different round as
    the last one, the entry is old or refers to rounds that the store has lost. A member is not ready while its round is
    running or if it is leaving."""
    reported = entry.reported
    leaves = reported is not None and reported.leaves and reported.round == state.round
    stopped = state.stopped == state.round  # the last round's members must leave
    out = leaves or ((state.open or stopped) and state.seated(entry.key))
    return entry.waits and entry.after == state.round and not out


def waiting(roster: Roster, state: State) -> list[Entry]:
    """Return the live nodes that are waiting for the next round and are allowed to take part in it."""
    out = {*state.draining, *(key for key, why in state.refused if why)}
    return [e for e in alive(roster, state) if e.key not in out and is_ready(e, state)]


def ordered(entries: Sequence[Entry], before: Sequence[str]) -> list[Entry]:
    """Return the members in rank order.

    Survivors keep their order. If rank 0 has left, the first survivor rather than a newcomer becomes rank 0. Newcomers
    are sorted by host and then by age. They take the places of members that have left, and the remaining newcomers are
    added at the end.

    A node that asks for a rank (`rank_hint`) gets that rank if it exists. If two nodes ask for the same rank, the node
    that would otherwise have the lower rank gets it.

    Args:
        entries: the members, oldest first.
        before: the keys of the last round's members in rank order.
    """
    by_key = {entry.key: entry for entry in entries}
    survivors = set(before) & set(by_key)
    newcomers = iter(sorted((e for e in entries if e.key not in survivors), key=lambda e: natural_order(e.host)))
    places = _with_first([by_key.get(key) for key in before])
    order = [entry for place in places if (entry := place or next(newcomers, None)) is not None]
    return _with_hints([*order, *newcomers])


def arranged(order: list[Entry], before: Sequence[str], policy: RankPolicy | None) -> list[Entry]:
    """Return the members in the rank policy's order. `order` is their default order. For `before`, see `ordered`."""
    if policy is None:
        return order
    last_ranks = {key: rank for rank, key in enumerate(before)}
    candidates = [Candidate(entry.described, last_ranks.get(entry.key)) for entry in order]
    entries = {id(candidate): entry for candidate, entry in zip(candidates, order, strict=True)}
    return [entries[id(candidate)] for candidate in policy(candidates)]


def _with_first(places: list[Entry | None]) -> list[Entry | None]:
    """Move the first survivor to rank 0 if that rank is free."""
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

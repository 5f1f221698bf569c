"""The roster: all announced entries, oldest first, as one observer sees them, and which of them count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Instant
    from elastic_core.rendezvous.model import Entry, State


@dataclass(frozen=True)
class Seen:
    """An entry as one observer sees it.

    Args:
        late: whether its beat is late: a late node is taken for gone.
        since: when the observer saw the entry's key first, on its own clock.
    """

    entry: Entry
    late: bool
    since: Instant


Roster = tuple[Seen, ...]
"""Oldest first."""


def holders(roster: Roster, state: State) -> dict[str, Entry]:
    """Which node has which name. Two live agents with one name cannot both be right: a surviving member has it (the
    other may be one that slept, and was replaced), otherwise the older one that may take part."""
    names: dict[str, Entry] = {}
    for seen in roster:
        if not seen.late:
            first = names.setdefault(seen.entry.node, seen.entry)
            if first is not seen.entry and _claim(seen.entry, state) > _claim(first, state):
                names[seen.entry.node] = seen.entry
    return names


def _claim(entry: Entry, state: State) -> int:
    """How good the node's claim to its name is: a member that was lost and has not beaten since has the weakest."""
    if state.seated(entry.key) and entry.key not in state.gone:
        return 2
    return int(is_ready(entry, state))


def alive(roster: Roster, state: State) -> list[Entry]:
    """The nodes that count: those that are not late and whose name no other has. A node whose name another has waits
    until the other is gone, or finds out and gives up."""
    names = holders(roster, state)
    return [seen.entry for seen in roster if not seen.late and names[seen.entry.node] is seen.entry]


def is_ready(entry: Entry, state: State) -> bool:
    """Whether the node waits for the next round: a newcomer at any time, a member once the round is behind it."""
    if not state.seated(entry.key):
        return entry.after >= state.last_round_of(entry.key)
    return entry.after >= state.round and not state.open


def waiting(roster: Roster, state: State) -> list[Entry]:
    """The live nodes that wait for the next round and may be in it."""
    out = {*state.draining, *(key for key, why in state.refused if why)}
    return [e for e in alive(roster, state) if e.key not in out and is_ready(e, state)]

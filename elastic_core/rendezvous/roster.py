"""The roster: all entries that are announced, oldest first, and who of them counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Instant
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.state import State


@dataclass(frozen=True)
class Seen:
    """An entry as one observer sees it.

    Args:
        late: whether its beat is late: whoever is late is held to be gone.
        since: when the observer saw the entry's key first, on its own clock.
    """

    entry: Entry
    late: bool
    since: Instant


Roster = tuple[Seen, ...]
"""Oldest first."""


def alive(roster: Roster) -> list[Entry]:
    """Who counts: neither late nor the second of its name. Two agents of one name cannot both be right; the older one
    stays, and the younger one waits until it is gone, or finds out and gives up."""
    names: set[str] = set()
    counted = []
    for seen in roster:
        if not seen.late and seen.entry.node not in names:
            names.add(seen.entry.node)
            counted.append(seen.entry)
    return counted


def is_ready(entry: Entry, state: State) -> bool:
    """Whether the node waits for the next round: a newcomer at any time, a member once the round is behind it."""
    if state.seat(entry.key) is None:
        return entry.after >= state.last_round_of(entry.key)
    return entry.after >= state.round and not state.open


def waiting(roster: Roster, state: State) -> list[Entry]:
    """The live nodes that wait for the next round and may be in it."""
    return [e for e in alive(roster) if is_ready(e, state) and e.key not in state.draining and not state.refusal(e.key)]

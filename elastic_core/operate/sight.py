"""What an observer has seen of a job, timed on its own clock. Pure; `status` looks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.codec import decoded_entry, decoded_state
from elastic_core.rendezvous.effects import Registration
from elastic_core.rendezvous.model import State
from elastic_core.rendezvous.observation import Observation
from elastic_core.rendezvous.roster import Seen, is_ready

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Duration, Instant
    from elastic_core.interfaces.backend import Announced
    from elastic_core.rendezvous.model import Entry
    from elastic_core.rendezvous.roster import Roster


@dataclass(frozen=True)
class Beat:
    """A node's sign of life.

    Args:
        age: seconds since its last beat was seen, or, if none was, since the observer began to look; None where the
            store itself drops the entries of nodes that are gone.
        seen: whether a beat was seen.
        late: whether the job holds it to be gone: the observer has waited long enough, or the job says so, and no beat
            refuted it.
    """

    age: Duration | None = None
    seen: bool = False
    late: bool = False


@dataclass(frozen=True)
class Sight:
    """See above.

    Args:
        since: when the observer began.
        now: when it looked last.
        observation: all counters of beats.
        state: None where no job has written one.
        entries: as announced, oldest first.
        unreadable: keys of entries that cannot be read.
        first: every counter as it was seen first.
        past: keys that the job itself has called gone: lost by the last round, or by an earlier one and not back.
    """

    since: Instant
    now: Instant
    observation: Observation
    state: State | None = None
    entries: tuple[Entry, ...] = ()
    unreadable: tuple[str, ...] = ()
    first: Mapping[str, int] = field(default_factory=dict)
    past: frozenset[str] = frozenset()

    def beat(self, key: str) -> Beat:
        """The sign of life of one entry."""
        counter = self.observation.counters.get(key)
        if counter is None:
            return Beat()
        seen = counter.value != self.first[key]
        lost = key in self.past and not seen
        return Beat(self.now - counter.since, seen, lost or self.observation.late(key, self.now))

    @property
    def roster(self) -> Roster:
        """As the nodes' own decisions see it."""
        return tuple(Seen(entry, self.beat(entry.key).late, self.since) for entry in self.entries)

    @property
    def silent(self) -> frozenset[str]:
        """Keys that gave no beat yet; once the job is over, nobody has to."""
        if self.state is not None and self.state.closed:
            return frozenset()
        counters = self.observation.counters.items()
        return frozenset(key for key, counter in counters if counter.value == self.first[key])


def first_sight(now: Instant, interval: Duration, attempts: int) -> Sight:
    """Nothing seen yet. `interval`: seconds between two beats; `attempts`: beats that may be missing."""
    return Sight(now, now, Observation(interval, attempts))


def looked(sight: Sight, state: bytes | None, announced: Sequence[Announced], now: Instant) -> Sight:
    """After another look.

    Raises:
        RendezvousStateError: the state is of another version, or not ours.
    """
    beats = {item.key: item.beats for item in announced if item.beats is not None}
    entries = {item.key: _entry(item) for item in announced}
    readable = tuple(entry for entry in entries.values() if entry is not None)
    known = None if state is None else decoded_state(state)
    found = tuple(Registration(item.key, entries[item.key], item.beats) for item in announced)
    return replace(
        sight,
        now=now,
        observation=sight.observation.after_look(found, known or State(), now),
        state=known,
        entries=readable,
        unreadable=tuple(key for key, entry in entries.items() if entry is None),
        first={key: sight.first.get(key, value) for key, value in beats.items()},
        past=frozenset() if known is None else _past(readable, known),
    )


def _past(entries: tuple[Entry, ...], state: State) -> frozenset[str]:
    behind = [entry.key for entry in entries if not state.seated(entry.key) and not is_ready(entry, state)]
    return frozenset((*state.gone, *behind))


def _entry(announced: Announced) -> Entry | None:
    try:
        return decoded_entry(announced.entry)
    except RendezvousStateError:  # one bad entry must not hide the others
        return None

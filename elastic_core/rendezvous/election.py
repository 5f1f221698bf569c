"""Leader election: which node runs `decide` for all, as one of them sees it. Pure.

It only keeps the store quiet: safety never depends on there being one leader. The leader counts up the leaders' counter
with every beat. The succession order, in which nodes may lead, follows from the state. When the counter stands still,
the next node in that order steps in; a node steps in later the further back it is, so that not all do so together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.rendezvous.observation import Counter

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.settings import RendezvousSettings

_DOUBTFUL = 0.5  # failure timeouts of silence of the leader, after which the nodes behind it are counted again
_ENOUGH = 2  # looks at a counter that stands still
_MOST_FAULTS = 3  # of a leader's work in a row
_BARRED = 10  # failure timeouts for which a leader that could not work leaves it to others


def position(state: State, key: str, older: int) -> int:
    """The node's place in the succession order, 0 for the first: members that live, stay and work come first, in rank
    order, then all others by age. `older`: how many entries are older, about."""
    out = {key: rank for key in _out(state) if (rank := state.rank(key)) is not None}
    rank = state.rank(key)
    if rank is None or key in out:
        return len(state.seats) - len(out) + older
    return rank - sum(other < rank for other in out.values())


def goes_by_age(state: State, key: str) -> bool:
    """Whether the node's place in the succession order depends on how many entries are older."""
    return not state.seated(key) or key in _out(state)


def _out(state: State) -> tuple[str, ...]:
    return *state.gone, *state.done, *state.draining


@dataclass(frozen=True)
class Election:
    """What one node knows of the election.

    Args:
        failure_timeout: seconds of silence after which a node is considered lost.
        interval: seconds between two beats.
        leading: whether this node leads, as far as it knows.
        older: how many entries of nodes that wait are older than this node's, about.
        recount: whether those may have left since they were counted.
        stepping_in: why this node is about to lead; empty if it is not.
        succession_read: whether it has looked which nodes are before it, and is not leading.
        counter: the leaders' counter as last seen.
        doubted: whether the line was counted anew in this silence.
        vacant_since: when the backend first reported that the leader has left.
        faults: how often in a row this node's work as a leader has failed.
        barred_until: until then this node does not lead, because it could not do the work.
    """

    failure_timeout: Duration
    interval: Duration
    leading: bool = False
    older: int = 0
    recount: bool = False
    stepping_in: str = ""
    succession_read: bool = False
    counter: Counter | None = None
    doubted: bool = False
    vacant_since: Instant | None = None
    faults: int = 0
    barred_until: Instant | None = None

    @classmethod
    def of(cls, settings: RendezvousSettings) -> Election:
        """Before this node has announced itself."""
        return cls(settings.failure_timeout, settings.keep_alive_interval)

    def patience(self, place: int) -> Duration:
        """Seconds of silence until the node at this place steps in."""
        return (1.0 + 0.25 * min(place - 1, 12)) * self.failure_timeout

    def looks(self, place: int, beats: int) -> bool:
        """Whether to look at the leaders' counter with the next beat: those near the head of the line always do."""
        return place <= 2 or beats % 2 == 0

    def barred(self, now: Instant) -> bool:
        """Whether this node could not do a leader's work a short while ago."""
        return self.barred_until is not None and now < self.barred_until

    def leads(self) -> Election:
        """From now on."""
        return replace(self, leading=True, stepping_in="", succession_read=False, faults=0)

    def steps_back(self) -> Election:
        """Another node leads, or should."""
        return replace(self, leading=False, stepping_in="", succession_read=False, faults=0)

    def steps_in(self, reason: str) -> Election:
        """This node will lead once it has looked which nodes are there and has counted."""
        return replace(self, stepping_in=reason)

    def read_succession(self) -> Election:
        """This node has looked which nodes are before it."""
        return replace(self, succession_read=True)

    def counted(self, value: int | None, now: Instant, place: int) -> Election:
        """This node leads, or is about to, and has counted up. If two count, the one that is not first in succession
        order steps back."""
        others = self.leading and self.counter is not None and value is not None and value > self.counter.value + 1
        counter = None if value is None else Counter(value, now)
        return replace(self, counter=counter, leading=self.leading and not (others and place > 0))

    def seen(self, value: int, now: Instant, place: int) -> Election:
        """This node does not lead, and has looked at the counter."""
        before = self.counter or Counter(value, now)
        counter = before.seen(value, now, self.interval)
        silence = now - counter.since
        moved = counter.value != before.value
        if moved or counter.unchanged < _ENOUGH:
            return replace(self, counter=counter, doubted=self.doubted and not moved)
        doubtful = silence >= _DOUBTFUL * self.failure_timeout and not self.doubted
        seen = replace(self, counter=counter, doubted=self.doubted or doubtful, recount=self.recount or doubtful)
        silent = silence >= self.patience(place) and not self.barred(now)
        return seen.steps_in("the node that led is silent") if silent else seen

    def after_outage(self, now: Instant) -> Election:
        """The leader could not count either."""
        return self if self.counter is None else replace(self, counter=self.counter.after_outage(0, now))

    def saw_vacant(self, vacant: bool, now: Instant, place: int) -> Election:
        """Record whether the backend saw the leader leave. The next node need not wait for silence; nodes after it
        wait longer."""
        if self.leading or not vacant:
            return self if self.vacant_since is None else replace(self, vacant_since=None)
        since = now if self.vacant_since is None else self.vacant_since
        seen = self if since == self.vacant_since else replace(self, vacant_since=since)
        due = now - since >= self.patience(place) - self.failure_timeout and not self.barred(now)
        return seen.steps_in("the node that led is gone") if due and not seen.stepping_in else seen

    def worked(self) -> Election:
        """All the leader's work is done."""
        return replace(self, faults=0) if self.faults else self

    def failed(self, now: Instant) -> Election:
        """A part of it has failed, though the store answers. After some such failures in a row this node lets the
        others try."""
        if not self.leading:
            return self
        if self.faults + 1 < _MOST_FAULTS:
            return replace(self, faults=self.faults + 1)
        return replace(self.steps_back(), barred_until=later(now, _BARRED * self.failure_timeout))

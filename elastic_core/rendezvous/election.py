"""Leader election from one node's point of view. The leader runs `decide` for all nodes. All functions are pure.

The leader increments the leader counter with every heartbeat. When the counter stops, the next node in the succession
order takes the lead. Nodes further back in the order wait longer, so that the nodes do not all try at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.rendezvous.roster import Counter

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.settings import RendezvousSettings

_DOUBTFUL = 0.5  # failure timeouts of silence after which a node recounts the nodes that precede it
_ENOUGH = 2  # observations after which a counter is considered stopped
_MOST_FAULTS = 3  # consecutive failures of a leader's work after which the node stops leading
_BARRED = 10  # failure timeouts for which a node that has failed as a leader does not lead again


def position(state: State, key: str, older: int) -> int:
    """Return the node's place in the succession order, from 0. Live members that are still working and were not asked
    to leave come first, in rank order. All other nodes follow, oldest first. `older` is the approximate number of older
    entries."""
    out = {key: rank for key in _out(state) if (rank := state.rank(key)) is not None}
    rank = state.rank(key)
    if rank is None or key in out:
        return len(state.seats) - len(out) + older
    return rank - sum(other < rank for other in out.values())


def ordered_by_age(state: State, key: str) -> bool:
    """Return whether the node's place in the succession order depends on its age rather than on its rank."""
    return not state.seated(key) or key in _out(state)


def _out(state: State) -> tuple[str, ...]:
    return *state.gone, *state.done, *state.draining


@dataclass(frozen=True)
class Election:
    """What one node knows about the election.

    Args:
        leading: whether this node is the leader, as far as it knows.
        older: the approximate number of waiting nodes' entries that are older than this node's entry.
        recount: whether `older` may be out of date.
        stepping_in: why this node is about to take the lead; empty if it is not.
        succession_read: whether this node, if it is about to take the lead, has read which nodes precede it.
        counter: the leader counter when it was last seen.
        doubted: whether this node has already set `recount` during the leader's current silence.
        vacant_since: when the backend first reported that the leader had left.
        faults: how many times in a row this node's work as leader has failed.
        barred_until: when this node may lead again after it failed to do the leader's work.
    """

    settings: RendezvousSettings
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

    def patience(self, place: int) -> Duration:
        """Return how many seconds the leader must be silent before the node at this place takes the lead."""
        return (1.0 + 0.25 * min(place - 1, 12)) * self.settings.failure_timeout

    def looks(self, place: int, beats: int) -> bool:
        """Return whether to read the leader counter with the next heartbeat. The first nodes in line always do, and the
        others do so every second time."""
        return place <= 2 or beats % 2 == 0

    def paused(self, now: Instant) -> bool:
        """Return whether this node must not lead for now, because it recently failed to do the leader's work."""
        return self.barred_until is not None and now < self.barred_until

    def leads(self) -> Election:
        """Record that this node leads from now on."""
        return replace(self, leading=True, stepping_in="", succession_read=False, faults=0)

    def lead_lost(self) -> Election:
        """Record that another node leads or should lead."""
        return replace(self, leading=False, stepping_in="", succession_read=False, faults=0)

    def counted(self, value: int | None, now: Instant, place: int) -> Election:
        """Record that this node has incremented the leader counter. If another node increments the counter as well,
        this node stops leading unless it is first in the succession order."""
        others = self.leading and self.counter is not None and value is not None and value > self.counter.value + 1
        counter = None if value is None else Counter(value, now)
        return replace(self, counter=counter, leading=self.leading and not (others and place > 0))

    def seen(self, value: int, now: Instant, place: int) -> Election:
        """Record that this node, which does not lead, has read this value of the leader counter."""
        before, timeout = self.counter or Counter(value, now), self.settings.failure_timeout
        counter = before.seen(value, now, self.settings.keep_alive_interval)
        silence = now - counter.since
        moved = counter.value != before.value
        if moved or counter.unchanged < _ENOUGH:
            return replace(self, counter=counter, doubted=self.doubted and not moved)
        doubtful = silence >= _DOUBTFUL * timeout and not self.doubted
        seen = replace(self, counter=counter, doubted=self.doubted or doubtful, recount=self.recount or doubtful)
        silent = silence >= self.patience(place) and not self.paused(now)
        return replace(seen, stepping_in="the leader is silent") if silent else seen

    def after_outage(self, now: Instant) -> Election:
        """Restart the wait for the leader, which could not increment the counter during the outage either."""
        return self if self.counter is None else replace(self, counter=self.counter.after_outage(0, now))

    def leader_left(self, vacant: bool, now: Instant, place: int) -> Election:
        """Record whether the backend has seen the leader leave. If so, the next node in line takes the lead without
        waiting for silence. Each later node waits a little longer."""
        if self.leading or not vacant:
            return self if self.vacant_since is None else replace(self, vacant_since=None)
        since = now if self.vacant_since is None else self.vacant_since
        seen = replace(self, vacant_since=since)
        due = now - since >= self.patience(place) - self.settings.failure_timeout and not self.paused(now)
        return replace(seen, stepping_in="the leader has left") if due and not seen.stepping_in else seen

    def worked(self) -> Election:
        """Record that the leader has done all its work."""
        return replace(self, faults=0) if self.faults else self

    def failed(self, now: Instant) -> Election:
        """Record that part of the leader's work has failed although the store answers. After a few failures in a row,
        this node stops leading, so that another node can try."""
        if not self.leading:
            return self
        if self.faults + 1 < _MOST_FAULTS:
            return replace(self, faults=self.faults + 1)
        barred_until = later(now, _BARRED * self.settings.failure_timeout)
        return replace(self.lead_lost(), barred_until=barred_until)

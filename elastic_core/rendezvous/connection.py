"""Tracks whether the store answers, and repairs a state that something outside the job has overwritten. All functions
are pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import Backoff, later

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.interfaces.backend import ForeignStateError
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.settings import RendezvousSettings


_PAUSES = Backoff(first=0.05, longest=1.0)
_SLOW = 0.2  # failure timeouts; if an answer takes longer, the store or this node was unavailable
_LATE = 0.5  # intervals; a node that checks a deadline this much too late was suspended


@dataclass(frozen=True)
class Connection:
    """The health of a node's connection to the store.

    Args:
        asked: when the unanswered operation began; None if there is none.
        since: when the first attempt since the last answer began; None if no answer is outstanding.
        renewed: when the last heartbeat that counts began; None before the first one.
        belated: when the last heartbeat began that was answered a failure timeout or more after `renewed`. By then, the
            other nodes may have declared this node lost, so it counts only once a read finds that the known state is
            still the newest. None if there is none.
        outage: why the store was last unreachable; reset to None when the node has nothing left to do.
        failures: how many attempts have failed since the node last had nothing left to do.
        retry_at: when the next attempt is due; None while attempts succeed.
        logged: whether the outage has been logged.
        away_at: when a slow answer last showed that the store was unavailable or this node was suspended.
        extended: the time until which a node that was suspended waits for an answer before it stops its workers.
    """

    settings: RendezvousSettings
    asked: Instant | None = None
    since: Instant | None = None
    renewed: Instant | None = None
    belated: Instant | None = None
    outage: Exception | None = None
    failures: int = 0
    retry_at: Instant | None = None
    logged: bool = False
    away_at: Instant | None = None
    extended: Instant | None = None

    def began(self, now: Instant) -> Connection:
        """Record that an operation begins."""
        return replace(self, asked=now, since=now if self.since is None else self.since)

    def was_outage(self, now: Instant) -> bool:
        """Return whether an answer that arrives now ends an outage of the store or a suspension of this node."""
        return self.outage is not None or self._slept(now)

    def _slept(self, now: Instant) -> bool:
        """Return whether the answer took so long that the store must have been unavailable or this node suspended. Only
        one slow answer per failure timeout counts, because a store that is always slow is still available."""
        timeout = self.settings.failure_timeout
        lately = self.away_at is not None and now - self.away_at < timeout
        return self.asked is not None and now - self.asked > _SLOW * timeout and not lately

    def answered(self, now: Instant, renews: bool = False, confirms: bool = False) -> Connection:
        """Record that the store has answered the operation. Other operations may still fail. `renews` is True if the
        operation was a sign of life for the other nodes, and `confirms` if it found that the known state is the newest.
        """
        renewed, belated, away_at = self.renewed, self.belated, now if self._slept(now) else self.away_at
        if renews and renewed is not None and now - renewed >= self.settings.failure_timeout:
            belated = self.asked
        elif renews:
            renewed, belated = self.asked, None
        elif confirms and belated is not None:
            renewed, belated = belated, None
        return replace(
            self,
            asked=None,
            since=None,
            renewed=renewed,
            belated=belated,
            retry_at=None,
            away_at=away_at,
            extended=None if belated is None else self.extended,
        )

    def failed(self, outage: Exception | None, now: Instant) -> Connection:
        """Record that the operation has failed. `outage` is the error if the store was unreachable. Any other fault is
        treated as a possible outage, because a third-party backend may raise its own errors."""
        failures = self.failures + 1
        return replace(
            self,
            asked=None,
            since=now if self.since is None else self.since,
            outage=outage or self.outage,
            failures=failures,
            retry_at=later(now, _PAUSES.pause(failures)),
        )

    def faults_forgotten(self) -> Connection:
        """Forget past faults, because the node has nothing left to do."""
        return replace(self, outage=None, failures=0, logged=False) if self.failures or self.logged else self

    def retry_due(self, now: Instant) -> bool:
        """Return whether it is time for another attempt."""
        return self.retry_at is None or now >= self.retry_at

    def retry_now(self) -> Connection:
        """Make the next attempt due now, because the agent has asked for something."""
        return replace(self, retry_at=None) if self.retry_at is not None else self

    def should_log(self, now: Instant) -> bool:
        """Return whether to log the outage now. Each outage is logged once, after the heartbeat timeout."""
        return self.since is not None and now - self.since >= self._patience and not self.logged

    def next_look(self, now: Instant) -> Instant:
        """Return when to check for an outage again. The caller's thread makes this check, because the thread that calls
        the store may hang."""
        since = self.since
        return later(now if since is None or now - since >= self._patience else since, self._patience)

    @property
    def _patience(self) -> Duration:
        return self.settings.timeout.heartbeat.total_seconds()

    def fence_at(self, grace: Duration, now: Instant) -> Instant:
        """Return the time at which this node must stop its workers unless the store answers first. For `grace`, see
        `RosterBackend`."""
        due = self._due(grace, now)
        return due if self.extended is None else max(due, self.extended)

    def _due(self, grace: Duration, now: Instant) -> Instant:
        """Return the deadline for an answer. The deadline is one interval early, because the last answered heartbeat
        may be one interval older than `since`. If its answer was late, that heartbeat is even older, because other
        nodes count from the time at which the store received it."""
        timeout = self.settings.failure_timeout + grace
        due = later(now if self.since is None else self.since, timeout - self.settings.keep_alive_interval)
        return due if self.since is None or self.renewed is None else min(due, later(self.renewed, timeout))

    def fenced(self, grace: Duration, now: Instant) -> tuple[Connection, bool]:
        """Return the updated connection, and whether the node must stop its workers because the store has not answered
        for too long. A node that was suspended could not receive an answer, so it gets one more interval."""
        due = None if self.since is None else self._due(grace, now)
        if due is None or now < due:
            return self if self.extended is None else replace(self, extended=None), False
        if self.extended is not None:
            return self, now >= self.extended
        interval = self.settings.keep_alive_interval
        slept = now - due > _LATE * interval
        return replace(self, extended=later(now, interval) if slept else now), not slept


_INTERVALS = 5  # heartbeat intervals that the leader gets to restore the state
_MOST_CHALLENGES = 3


class Remedy(enum.Enum):
    """What a node does about an unreadable value in place of the state.

    Attributes:
        PUT_BACK: the leader restores the state.
        WAIT: another node may restore the state.
        PASS_OVER: the node treats the place as empty.
        CHALLENGE: the node overwrites the value now.
        REFUSE: the node reports that the value belongs to other nodes, and waits.
    """

    PUT_BACK = "put back"
    WAIT = "wait"
    PASS_OVER = "pass over"
    CHALLENGE = "challenge"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Repair:
    """A node's progress in repairing a stored value that this job cannot read as a state. The state on which the nodes
    have agreed remains valid, and the leader writes it back. A node that has not read a state yet waits a few heartbeat
    intervals for the leader. If nothing has been written back by then, the node treats the place as empty, unless the
    value may be the state of other nodes. If that value is signed with another secret, the node challenges the other
    nodes by overwriting it. If those nodes are alive, they write their state back, and this job cannot use the place.

    Args:
        since: when the node first saw the unreadable value or last overwrote it; None if the state can be read.
        challenges: how many challenges have been made since the node last read this job's state.
        reason: why the value is unreadable.
    """

    settings: RendezvousSettings
    since: Instant | None = None
    challenges: int = 0
    reason: str = ""

    def sees(self, found: ForeignStateError, known: State | None, now: Instant) -> tuple[Repair, Remedy]:
        """Return the new progress and the remedy for a node that knows the state `known` and has read `found`."""
        seen = replace(self, since=now if self.since is None else self.since, reason=str(found))
        contested = found.others and found.secret
        if known is not None and (known.round or not contested):
            return seen, Remedy.PUT_BACK
        if not self.challenges and seen._may_change(now):
            return seen, Remedy.WAIT
        if not found.others:
            return seen, Remedy.PASS_OVER
        if contested and self.challenges < _MOST_CHALLENGES:
            return replace(seen, since=now, challenges=self.challenges + 1), Remedy.CHALLENGE
        return seen, Remedy.REFUSE

    def distrusts(self, found: State | None, now: Instant) -> bool:
        """Return whether challenged nodes may still overwrite `found`. A state with a round is always trusted."""
        return bool(self.challenges) and self._may_change(now) and (found is None or not found.round)

    def is_due(self, leads: bool, next_at: Instant, now: Instant) -> bool:
        """Return whether the node should write a state back now. If the stored value is unreadable, only the leader
        (from time to time) and nodes that have challenged others do so."""
        return self.since is None or bool(self.challenges) or (leads and now >= next_at)

    def _may_change(self, now: Instant) -> bool:
        patience = min(self.settings.failure_timeout, _INTERVALS * self.settings.keep_alive_interval)
        return self.since is not None and now - self.since < patience

"""Connection health: tracks whether the store answers this node and, if it does not, how long it has been silent and
what the node must do. All functions are pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.support.retry import Backoff

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.rendezvous.settings import RendezvousSettings

_PAUSES = Backoff(first=0.05, longest=1.0)
_SLOW = 0.2  # failure timeouts; if an answer takes longer, the store or this node was unavailable
_LATE = 0.5  # intervals; a node that checks a deadline this much too late was suspended


@dataclass(frozen=True)
class Connection:
    """The health of one connection. In all methods, `asked` is the time at which the unanswered operation began, or
    None if no operation is unanswered.

    Args:
        since: when the first failed attempt after the last answer began; None if the last attempt was answered.
        outage: why the store was last unreachable; reset to None when the node has nothing left to do.
        failures: how many attempts have failed since the node last had nothing left to do.
        retry_at: when the next attempt is due; None while attempts succeed.
        logged: whether the outage has been logged.
        away_at: when a slow answer last showed that the store had been unavailable or this node suspended.
        extended: the time until which a node that was suspended waits for an answer before it stops its workers.
    """

    settings: RendezvousSettings
    since: Instant | None = None
    outage: Exception | None = None
    failures: int = 0
    retry_at: Instant | None = None
    logged: bool = False
    away_at: Instant | None = None
    extended: Instant | None = None

    def was_outage(self, asked: Instant, now: Instant) -> bool:
        """Return whether an answer that arrives now shows that the store was unavailable or this node was suspended."""
        return self.outage is not None or self._slept(asked, now)

    def _slept(self, asked: Instant, now: Instant) -> bool:
        """Return whether the answer took so long that the store was unavailable or this node was suspended. Only one
        slow answer per failure timeout is treated in this way, because a store that is always slow is still
        available."""
        timeout = self.settings.failure_timeout
        lately = self.away_at is not None and now - self.away_at < timeout
        return now - asked > _SLOW * timeout and not lately

    def answered(self, asked: Instant, now: Instant) -> Connection:
        """Record that the store has answered the operation. Other operations may still fail."""
        away_at = now if self._slept(asked, now) else self.away_at
        return replace(self, since=None, retry_at=None, extended=None, away_at=away_at)

    def failed(self, asked: Instant, outage: Exception | None, now: Instant) -> Connection:
        """Record that the operation has failed. `outage` is the error if the store was unreachable. Any other fault is
        treated as a possible outage, because a third-party backend may raise its own errors."""
        failures = self.failures + 1
        return replace(
            self,
            since=asked if self.since is None else self.since,
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

    def silent_since(self, asked: Instant | None) -> Instant | None:
        """Return the time at which the node began to wait for an answer, or None if it is not waiting."""
        return asked if self.since is None else self.since

    def should_log(self, asked: Instant | None, now: Instant) -> bool:
        """Return whether to log the outage now. Each outage is logged once, after the heartbeat timeout."""
        since = self.silent_since(asked)
        return since is not None and now - since >= self._patience and not self.logged

    def next_look(self, asked: Instant | None, now: Instant) -> Instant:
        """Return the time of the next check for an outage. The thread that calls the store may hang."""
        since = self.silent_since(asked)
        return later(now if since is None or now - since >= self._patience else since, self._patience)

    @property
    def _patience(self) -> Duration:
        return self.settings.timeout.heartbeat.total_seconds()

    def fence_at(self, asked: Instant | None, grace: Duration, now: Instant) -> Instant:
        """Return the time at which this node stops its workers unless the store answers. For `grace`, see
        `RosterBackend`."""
        since = self.silent_since(asked)
        due = self._due(now if since is None else since, grace)
        return due if self.extended is None else max(due, self.extended)

    def _due(self, since: Instant, grace: Duration) -> Instant:
        """Return the deadline. It is one interval early, because the last answered heartbeat may be one interval older
        than `since`."""
        return later(since, self.settings.failure_timeout + grace - self.settings.keep_alive_interval)

    def fenced(self, asked: Instant | None, grace: Duration, now: Instant) -> tuple[Connection, bool]:
        """Return the new health, and whether the node must stop its workers because it has been unable to reach the
        store for too long. A process that was suspended could not receive an answer, so it gets one more interval."""
        since = self.silent_since(asked)
        due = None if since is None else self._due(since, grace)
        if due is None or now < due:
            return self if self.extended is None else replace(self, extended=None), False
        if self.extended is not None:
            return self, now >= self.extended
        interval = self.settings.keep_alive_interval
        slept = now - due > _LATE * interval
        return replace(self, extended=later(now, interval) if slept else now), not slept

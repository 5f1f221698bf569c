"""Connection health: whether the store answers one node, and if not, since when, and what follows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.support.retry import Backoff

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.rendezvous.settings import RendezvousSettings

_PAUSES = Backoff(first=0.05, longest=1.0)
_SLOW = 0.2  # failure timeouts; if an answer takes longer, the store or this node was away
_LATE = 0.5  # of an interval: a node that looks later than this after it should have has slept


@dataclass(frozen=True)
class Connection:
    """See above. `asked` is always when the operation began that is not answered yet; None if there is none.

    Args:
        failure_timeout: seconds without a beat after which a node is called gone.
        interval: seconds between two beats.
        patience: seconds for an answer before an outage is logged.
        since: when the first of the attempts began that failed since the last answer; None if the last was answered.
        outage: how the store could last not be reached; None once nothing was left to do, and all was answered.
        failures: attempts that failed since all was well.
        retry_at: when the next attempt is due; None while attempts succeed.
        logged: whether the outage was logged.
        away_at: when the store was last seen to be back by how long an answer took.
        extended: until when a node that slept waits for an answer before it fences itself off.
    """

    failure_timeout: Duration
    interval: Duration
    patience: Duration
    since: Instant | None = None
    outage: Exception | None = None
    failures: int = 0
    retry_at: Instant | None = None
    logged: bool = False
    away_at: Instant | None = None
    extended: Instant | None = None

    @classmethod
    def of(cls, settings: RendezvousSettings) -> Connection:
        """Before the first attempt."""
        return cls(settings.failure_timeout, settings.keep_alive_interval, settings.timeout.heartbeat.total_seconds())

    def was_away(self, asked: Instant, now: Instant) -> bool:
        """Whether an answer that comes now shows that the store was away, or slept, or this node did. A store whose
        answers are slow again and again is there: that counts once in a failure timeout."""
        return self.outage is not None or self._slept(asked, now)

    def _slept(self, asked: Instant, now: Instant) -> bool:
        lately = self.away_at is not None and now - self.away_at < self.failure_timeout
        return now - asked > _SLOW * self.failure_timeout and not lately

    def answered(self, asked: Instant, now: Instant) -> Connection:
        """The operation has been answered. That counts at once, though other operations may still fail."""
        if self._slept(asked, now):
            return replace(self, since=None, retry_at=None, extended=None, away_at=now)
        if self.since is None and self.extended is None:
            return self
        return replace(self, since=None, retry_at=None, extended=None)

    def failed(self, asked: Instant, outage: Exception | None, now: Instant) -> Connection:
        """The operation has failed; `outage` if the store was not reached. A fault of another kind says nothing certain
        about the store: a backend may describe an outage in words that are unknown here."""
        failures = self.failures + 1
        return replace(
            self,
            since=asked if self.since is None else self.since,
            outage=outage or self.outage,
            failures=failures,
            retry_at=later(now, _PAUSES.pause(failures)),
        )

    def rests(self) -> Connection:
        """Everything is done, so what went wrong before is past."""
        if self.outage is None and not self.failures and not self.logged:
            return self
        return replace(self, outage=None, failures=0, logged=False)

    def may_try(self, now: Instant) -> bool:
        """Whether it is time for an attempt."""
        return self.retry_at is None or now >= self.retry_at

    def hurries(self) -> Connection:
        """There is a request: the next attempt comes at once."""
        return self if self.retry_at is None else replace(self, retry_at=None)

    def silent_since(self, asked: Instant | None) -> Instant | None:
        """Since when answers are waited for; None if nothing is being tried and the last attempt was answered."""
        return asked if self.since is None else self.since

    def is_news(self, asked: Instant | None, now: Instant) -> bool:
        """Whether to report an outage: once, when it has lasted for as long as a beat may take."""
        since = self.silent_since(asked)
        return since is not None and now - since >= self.patience and not self.logged

    def next_look(self, asked: Instant | None, now: Instant) -> Instant:
        """When to look next whether there is an outage to report: the thread that asks the store may hang."""
        since = self.silent_since(asked)
        return later(now if since is None or now - since >= self.patience else since, self.patience)

    def fence_at(self, asked: Instant | None, grace: Duration, now: Instant) -> Instant:
        """When this node will have fenced itself off unless the store answers. The last beat that was answered may be
        an interval older than the first attempt that was not. `grace`: seconds beyond the failure timeout."""
        since = self.silent_since(asked)
        due = later(now if since is None else since, self.failure_timeout + grace - self.interval)
        return due if self.extended is None else max(due, self.extended)

    def fenced(self, asked: Instant | None, grace: Duration, now: Instant) -> tuple[Connection, bool]:
        """Whether the store was out of reach for too long. A process that was suspended finds that time has passed,
        though it could not have heard an answer: it has one more interval to hear one."""
        since = self.silent_since(asked)
        due = None if since is None else later(since, self.failure_timeout + grace - self.interval)
        if due is None or now < due:
            return self if self.extended is None else replace(self, extended=None), False
        if self.extended is not None:
            return self, now >= self.extended
        slept = now - due > _LATE * self.interval
        return replace(self, extended=later(now, self.interval) if slept else now), not slept

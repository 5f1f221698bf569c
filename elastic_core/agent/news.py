"""News for the agent, sorted: signals, the end of a join, timers that expired. One waits for all of it in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.agent.inbox import Inbox, Item, Joined, RoundChanged, Signalled, TimerExpired
from elastic_core.clock import Duration, Instant, later
from elastic_core.log import get_logger

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection

    from elastic_core.clock import Clock
    from elastic_core.interfaces.handler import RendezvousInfo
    from elastic_core.interfaces.watchdog import Expiry

_SAME_REQUEST: Duration = 0.5  # seconds; a terminal and a wrapper (tox, timeout) both pass on what was asked once


class News:
    """`signalled`, `expired`, `joined`, `round_changed` from any thread or signal handler; the rest from the agent's.

    Attributes:
        signals: all that asked the agent to leave, in order.
        urged: somebody asked again and does not want to wait for the grace period.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._inbox = Inbox(clock)
        self._asked_at = Instant(0.0)
        self._joined: Joined | None = None
        self._expired: list[Expiry] = []
        self._came_at = Instant(0.0)
        self._hangs_since: Instant | None = None
        self.signals: list[signal.Signals] = []
        self.urged = False

    def signalled(self, signum: signal.Signals) -> None:
        self._inbox.post(Signalled(signum, self._clock.now()))

    def expired(self, expiry: Expiry) -> None:
        self._inbox.post(TimerExpired(expiry))

    def joined(self, outcome: RendezvousInfo | BaseException) -> None:
        self._inbox.post(Joined(outcome))

    def round_changed(self) -> None:
        self._inbox.post(RoundChanged())

    def wait(self, fds: Collection[int], until: Instant | None) -> None:
        """Wait for news, for one of `fds`, or until then, and sort what came. See `Inbox.wait`."""
        items = self._inbox.wait(fds, until)
        self._came_at = self._clock.now()
        for item in items:
            self._take(item)

    def take_joined(self) -> RendezvousInfo | BaseException | None:
        """How the join ended that was waited for; None while it has not. Each one comes once."""
        joined, self._joined = self._joined, None
        return joined.outcome if joined else None

    def take_expired(self) -> list[Expiry]:
        """Timers that expired since the last call."""
        expired, self._expired = self._expired, []
        return expired

    def first_sign(self) -> Instant:
        """When it showed that the round must end, if it must: when a worker that hung should have come on, else with
        the last news."""
        return self._came_at if self._hangs_since is None else self._hangs_since

    def hung(self, late: Duration) -> None:
        """A worker was killed that should have come on `late` seconds before the last news."""
        since = later(self._came_at, -late)
        self._hangs_since = since if self._hangs_since is None else min(since, self._hangs_since)

    def forget_hangs(self) -> None:
        """Those of an earlier round are not the first sign of anything."""
        self._hangs_since = None

    def alive_at(self) -> float:
        """When the agent last turned to its news, seconds since the epoch; one that waits for them is alive now."""
        return self._clock.timestamp() if self._inbox.waiting else self._inbox.waited_at

    def close(self) -> None:
        """Later news are dropped. Idempotent."""
        self._inbox.close()

    def _take(self, item: Item) -> None:
        if isinstance(item, Signalled):
            self._take_signal(item)
        elif isinstance(item, Joined):
            self._joined = item
        elif isinstance(item, TimerExpired):
            self._expired.append(item.expiry)

    def _take_signal(self, item: Signalled) -> None:
        get_logger().warning("signal received", signal=item.signum.name)
        if not self.signals:
            self._asked_at = item.at
        elif item.signum != self.signals[0] or item.at - self._asked_at >= _SAME_REQUEST:
            self.urged = True
        self.signals.append(item.signum)

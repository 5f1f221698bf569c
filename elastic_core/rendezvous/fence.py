"""When a node fences itself off: the store has not answered for as long as the others need to call the node gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import later

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant

_LATE = 0.5  # of an interval: whoever asks later than this after the deadline has slept


class Fence:
    """Asked by one thread at a time.

    Args:
        window: seconds without a beat after which a node is called gone.
        interval: seconds between two beats. The last beat that was answered may be that much older than the first
            attempt that was not.
    """

    def __init__(self, window: Duration, interval: Duration) -> None:
        self._patience = window - interval
        self._interval = interval
        self._grace: Instant | None = None

    def ask_again(self, since: Instant | None, now: Instant) -> Instant:
        """When to ask next. `since`: when the store was first tried without an answer; None while it answers."""
        if since is None or self._grace is None:
            return later(now if since is None else since, self._patience)
        return max(self._grace, later(since, self._patience))

    def passed(self, since: Instant | None, now: Instant) -> bool:
        """Whether the store was out of reach for too long. A process that was suspended finds that time has passed,
        though it could not have heard an answer: it has one more interval to hear one."""
        if since is None or now < later(since, self._patience):
            self._grace = None
            return False
        if self._grace is None:
            slept = now - later(since, self._patience) > _LATE * self._interval
            self._grace = later(now, self._interval) if slept else now
        return now >= self._grace

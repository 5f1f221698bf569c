"""Whether the store answers: since when it has not, how long to pause before the next attempt, and what was said of it
in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from elastic_core.clock import later
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.rendezvous.settings import RendezvousSettings

T = TypeVar("T")
_FIRST_RETRY: Duration = 0.05
_LONGEST_RETRY: Duration = 1.0
_SLOW = 0.2  # windows that an answer may take; in longer ones the store was away


class Reach:
    """One thread asks. `since`, `notice` may be used by any: an attempt that hangs counts too.

    Args:
        was_away: called when the store has answered after it was away, or slept.

    Attributes:
        since: since when answers are waited for; None if nothing is being tried and the last attempt was answered.
        outage: how the last turn failed to reach the store; None once one went through.
    """

    def __init__(self, clock: Clock, settings: RendezvousSettings, was_away: Callable[[Instant], None]) -> None:
        self.since: Instant | None = None
        self.outage: Exception | None = None
        self._clock = clock
        self._patience = settings.timeout.heartbeat
        self._slow = _SLOW * settings.window
        self._was_away = was_away
        self._retry = _FIRST_RETRY
        self._told = False

    def begin(self, now: Instant) -> None:
        """A turn begins."""
        if self.since is None:
            self.since = now

    def ask(self, operation: Callable[[], T]) -> T:
        """The answer to an operation of the backend's. It counts at once: the rest of the turn may take long."""
        begun = self._clock.now()
        found = operation()
        now = self.since = self._clock.now()
        if self.outage is not None or now - begun > self._slow:
            self._was_away(now)
        return found

    def end(self) -> None:
        """The turn went through: what went wrong before is past."""
        self.since = None
        self.outage = None
        self._retry = _FIRST_RETRY
        if self._told:
            self._told = False
            get_logger().info("store is back")

    def fail(self, outage: Exception) -> None:
        """The turn did not reach the store."""
        self.outage = outage
        self._tell(str(outage))

    def pause(self) -> Instant:
        """When to try again, after a turn that went wrong; the pauses grow."""
        due = later(self._clock.now(), self._retry)
        self._retry = min(2 * self._retry, _LONGEST_RETRY)
        return due

    def notice(self) -> Instant:
        """Log it when an attempt hangs: the thread that asks hangs with it. Returns when to look again."""
        self._tell(str(self.outage or "it does not answer"))
        since, now = self.since, self._clock.now()
        return later(now if since is None or now - since >= self._patience else since, self._patience)

    def _tell(self, reason: str) -> None:
        """Once, when it has lasted for as long as a beat may take."""
        since, now = self.since, self._clock.now()
        if since is not None and now - since >= self._patience and not self._told:
            self._told = True
            get_logger().warning("store out of reach", seconds=round(now - since, 1), reason=reason)

"""Time. Only this module reads the system's clocks; all others receive a `Clock` or the current instant."""

from __future__ import annotations

import time
from typing import NewType, Protocol

Instant = NewType("Instant", float)
"""Seconds on one process's monotonic clock. Meaningless in other processes, so it is never sent to them."""

LONG_AGO = Instant(float("-inf"))
"""Before every other instant."""

Duration = float
"""Seconds."""


class Clock(Protocol):
    """A source of time: `SystemClock`, or `elastic_testing.FakeClock` in tests."""

    def now(self) -> Instant:
        """The current monotonic time, for deadlines and intervals."""
        ...

    def timestamp(self) -> float:
        """Seconds since the epoch, for display and reports, never for decisions."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> Instant:
        return Instant(time.monotonic())

    def timestamp(self) -> float:
        return time.time()


def later(instant: Instant, duration: Duration) -> Instant:
    """The instant `duration` seconds after `instant`."""
    return Instant(instant + duration)

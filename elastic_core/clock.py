"""Time. The only module that reads a clock; all others are given a clock, or the instant `now`."""

from __future__ import annotations

import time
from typing import NewType, Protocol

Instant = NewType("Instant", float)
"""Seconds on the monotonic clock of one process. It means nothing in another process and is never sent to one."""

LONG_AGO = Instant(float("-inf"))
"""Before every other instant."""

Duration = float
"""Seconds."""


class Clock(Protocol):
    """Where the time comes from. `testing.FakeClock` is the other implementation."""

    def now(self) -> Instant:
        """The monotonic present: for deadlines and intervals."""
        ...

    def timestamp(self) -> float:
        """Seconds since the epoch: for people and reports, never for decisions."""
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

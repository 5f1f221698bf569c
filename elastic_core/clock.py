"""Provides the time. Only this module reads the system's clocks. All other modules receive a `Clock` or the current
instant."""

from __future__ import annotations

import time
from typing import NewType, Protocol

Instant = NewType("Instant", float)
"""Seconds on one process's monotonic clock. Never sent to other processes, where they would be meaningless."""

LONG_AGO = Instant(float("-inf"))
"""An instant that is earlier than any other."""

Duration = float
"""A duration in seconds."""


class Clock(Protocol):
    """A source of time: `SystemClock`, or `elastic_testing.FakeClock` in tests."""

    def now(self) -> Instant:
        """Return the current monotonic time, for deadlines and intervals."""
        ...

    def timestamp(self) -> float:
        """Return the seconds since the epoch. Use them for display and reports, never for decisions."""
        ...


class SystemClock:
    """This machine's clock."""

    def now(self) -> Instant:
        return Instant(time.monotonic())

    def timestamp(self) -> float:
        return time.time()


def earliest(*instants: Instant | None) -> Instant | None:
    """Return the earliest of the instants that are not None, or None if all of them are None."""
    return min((instant for instant in instants if instant is not None), default=None)


def later(instant: Instant, duration: Duration) -> Instant:
    """Return the instant `duration` seconds after `instant`."""
    return Instant(instant + duration)

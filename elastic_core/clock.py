"""Provides the time, and computes the pauses between attempts. Only this module reads the system's clocks. Code that
decides something receives a `Clock` or the current instant, so that tests can choose the time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


Instant = NewType("Instant", float)
"""Seconds on the machine's monotonic clock, which all its processes share. Never sent to other machines."""

LONG_AGO = Instant(float("-inf"))
"""An instant that is earlier than any other."""

Duration = float
"""A duration in seconds."""


class Clock(Protocol):
    """A source of time. Programs use `SystemClock`, and tests use `elastic_testing.FakeClock`."""

    def now(self) -> Instant:
        """Return the current monotonic time, for deadlines and intervals."""

    def timestamp(self) -> float:
        """Return the seconds since the epoch. Use them for display and reports, never for decisions."""


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


T = TypeVar("T")

MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""Errors that usually indicate a bug, so that retrying would be pointless."""
_MANY = 64  # an exponent that cannot make a float overflow


@dataclass(frozen=True)
class Backoff:
    """Computes the pause after each consecutive failed attempt.

    Args:
        first, longest: the first and the longest pause, in seconds.
        factor: the ratio of each pause to the previous pause.
    """

    first: Duration
    longest: Duration
    factor: float = 2.0

    def pause(self, attempts: int) -> Duration:
        """Return the pause in seconds after this many failed attempts."""
        if attempts <= 0:
            return 0.0
        grown: Duration = self.first * self.factor ** min(attempts - 1, _MANY)
        return min(grown, self.longest)


def swapped(change: Callable[[], T | None], attempts: int, what: str) -> T:
    """Change a shared value by compare-and-swap, and return the first result of `change` that is not None. `change`
    reads the value, chooses a new one, and tries to write it. If another writer was faster, `change` must return None,
    and is called again. After `attempts` calls, raises RendezvousConnectionError with a message that begins with
    `what`."""
    for _ in range(attempts):
        done = change()
        if done is not None:
            return done
    from elastic_core.errors import RendezvousConnectionError  # training scripts import this module

    reason = "because other writers were always faster"
    raise RendezvousConnectionError(f"{what}: could not write within {attempts} attempts, {reason}")

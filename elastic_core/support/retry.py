"""Retries: growing pauses between attempts, and compare-and-swap for a value that other writers also change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

T = TypeVar("T")

MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""Errors that usually come from a mistake in the code, so that retrying would be pointless."""
_MANY = 64  # an exponent with which no float overflows


@dataclass(frozen=True)
class Backoff:
    """How long to pause after a number of consecutive failed attempts.

    Args:
        first, longest: the first and the longest pause, in seconds.
        factor: each pause is longer than the previous one by this factor.
    """

    first: Duration
    longest: Duration
    factor: float = 2.0

    def pause(self, attempts: int) -> Duration:
        """Return how many seconds to pause after this many attempts, which is 0 after no attempts."""
        if attempts <= 0:
            return 0.0
        grown: Duration = self.first * self.factor ** min(attempts - 1, _MANY)
        return min(grown, self.longest)


class TooManyRefusals(Exception):
    """Other writers were always faster."""


def swapped(change: Callable[[], T | None], attempts: int) -> T:
    """Change a shared value by compare-and-swap. `change` reads the value, decides, and writes the new value in place
    of the one that it read. If the write was refused because another writer was faster, `change` returns None and is
    called again. Returns the first other result. Raises TooManyRefusals after this many attempts."""
    for _ in range(attempts):
        done = change()
        if done is not None:
            return done
    raise TooManyRefusals(f"could not write within {attempts} attempts, because other writers were always faster")

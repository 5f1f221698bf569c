"""Retries: growing pauses between attempts, and compare-and-swap of a value that other writers change as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

T = TypeVar("T")

MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""Errors that usually come from a mistake in the code, so that a retry would fail too."""
_MANY = 64  # an exponent with which no float overflows


@dataclass(frozen=True)
class Backoff:
    """How long to pause after a number of successive attempts without success.

    Args:
        first, longest: seconds.
        factor: each pause is longer than the previous one by this factor.
    """

    first: Duration
    longest: Duration
    factor: float = 2.0

    def pause(self, attempts: int) -> Duration:
        """The seconds to pause after this many attempts; 0 after none."""
        if attempts <= 0:
            return 0.0
        grown: Duration = self.first * self.factor ** min(attempts - 1, _MANY)
        return min(grown, self.longest)


class TooManyRefusals(Exception):
    """Other writers always wrote first."""


def swapped(change: Callable[[], T | None], attempts: int) -> T:
    """Change a shared value by compare-and-swap. `change` reads the value, decides, and writes the new value in place
    of the one that it read. It returns None if the write was refused because another writer came first; then it is
    called again. Returns its first result that is not None. Raises TooManyRefusals after so many attempts."""
    for _ in range(attempts):
        done = change()
        if done is not None:
            return done
    raise TooManyRefusals(f"expected to write within {attempts} attempts, found that others always did so first")

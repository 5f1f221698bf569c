"""Trying again: the growing pauses between attempts, and the change of a shared value that others change as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

T = TypeVar("T")

MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""Errors that mostly come from a mistake in the code, and so would come again."""
_MANY = 64  # an exponent with which no float overflows


@dataclass(frozen=True)
class Backoff:
    """How long to pause after a number of successive attempts that failed, or brought nothing.

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
    """Others always wrote first."""


def swapped(change: Callable[[], T | None], attempts: int) -> T:
    """Change a shared value by compare-and-swap. `change` reads the value, decides, and writes the new value in place
    of the one it has read. It returns None if the write was refused because another one came first; then it is called
    again. Returns its first result that is not None. Raises TooManyRefusals after so many attempts: each refusal means
    that another writer made progress, and this one should have had its turn by then."""
    for _ in range(attempts):
        done = change()
        if done is not None:
            return done
    raise TooManyRefusals(f"expected to write within {attempts} attempts, found that others always did so first")

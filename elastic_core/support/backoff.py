"""Pauses between attempts, which grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration

_MANY = 64  # a power that no float overflows with


@dataclass(frozen=True)
class Backoff:
    """How long to pause after so many attempts in a row that failed, or brought nothing.

    Args:
        first, longest: seconds.
        factor: by which each pause is longer than the one before.
    """

    first: Duration
    longest: Duration
    factor: float = 2.0

    def pause(self, attempts: int) -> Duration:
        """Seconds after this many attempts; 0 after none."""
        if attempts <= 0:
            return 0.0
        grown: Duration = self.first * self.factor ** min(attempts - 1, _MANY)
        return min(grown, self.longest)

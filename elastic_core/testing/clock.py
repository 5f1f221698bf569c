"""A clock that stands still until it is told to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import Instant

if TYPE_CHECKING:
    from elastic_core.clock import Duration


class FakeClock:
    """See `clock.Clock`. Starts at instant 0; `epoch` is the timestamp at that instant."""

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch = epoch
        self._elapsed: Duration = 0.0

    def now(self) -> Instant:
        return Instant(self._elapsed)

    def timestamp(self) -> float:
        return self._epoch + self._elapsed

    def advance(self, seconds: Duration) -> Instant:
        """Let `seconds` pass. Raises ValueError for a step backwards: a monotonic clock takes none."""
        if seconds < 0:
            raise ValueError(f"expected a step forward in time, found {seconds} s")
        self._elapsed += seconds
        return self.now()

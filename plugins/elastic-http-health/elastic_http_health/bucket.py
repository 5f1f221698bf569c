"""A token bucket: so many per second, and a few more after a quiet time. Pure but for its own count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant


class Bucket:
    """Full at first.

    Args:
        rate: tokens per second that flow in.
        size: tokens that it holds.
    """

    def __init__(self, rate: float, size: float, now: Instant) -> None:
        self._rate = rate
        self._size = size
        self._tokens = size
        self._at = now

    def take(self, now: Instant) -> Duration:
        """Take a token: 0. If there is none, nothing is taken, and the seconds until there is one are returned."""
        self._tokens = min(self._size, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        if self._tokens < 1:
            return (1 - self._tokens) / self._rate
        self._tokens -= 1
        return 0.0

    def put_back(self) -> None:
        """The token that was taken last was not needed."""
        self._tokens += 1

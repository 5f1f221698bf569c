"""Progress: a line now and then while something takes long, so that the terminal is not silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.clock import Duration, Instant

FIRST_AFTER: Duration = 3.0
THEN_EVERY: Duration = 5.0


class Progress:
    """A wait that begins at `begun`. `fields` is given the seconds waited so far, and says what else is in the line."""

    def __init__(
        self, begun: Instant, waiting_for: str, fields: Callable[[int], Mapping[str, object]] | None = None
    ) -> None:
        self._begun = begun
        self._waiting_for = waiting_for
        self._fields = fields or (lambda seconds: {"seconds": seconds})
        self._next_at = later(begun, FIRST_AFTER)

    def look(self, now: Instant) -> Instant:
        """Write a line if it is time to; returns when to look next."""
        if now >= self._next_at:
            self._next_at = later(now, THEN_EVERY)
            fields = self._fields(round(now - self._begun))
            get_logger().info("still waiting", waiting_for=self._waiting_for, **fields)
        return self._next_at

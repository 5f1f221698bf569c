"""Progress: a line now and then while something takes long, so that nobody looks at a silent terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import later

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration, Instant

FIRST_AFTER: Duration = 3.0
THEN_EVERY: Duration = 5.0


@dataclass
class Progress:
    """A wait that began at `begun`. `tell` receives the seconds waited so far."""

    begun: Instant
    tell: Callable[[Duration], None]
    next_at: Instant

    @classmethod
    def starting(cls, now: Instant, tell: Callable[[Duration], None]) -> Progress:
        """A wait that begins now."""
        return cls(now, tell, later(now, FIRST_AFTER))

    def look(self, now: Instant) -> Instant:
        """Tell if it is time to; returns when to look next."""
        if now >= self.next_at:
            self.tell(now - self.begun)
            self.next_at = later(now, THEN_EVERY)
        return self.next_at

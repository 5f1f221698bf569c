"""Until when an operation of a store waits, or tries again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import later

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration, Instant


class Deadline:
    """Tells it when it is called. Most writes end without that, and to read a store's timeout from torch's C++ side
    takes a tenth of the time that is ours to lose in each.

    Args:
        begun: when the operation began.
        patience: how long it may take from then on; asked once, when the deadline is needed first.
    """

    def __init__(self, begun: Instant, patience: Callable[[], Duration]) -> None:
        self._begun = begun
        self._patience = patience
        self._at: Instant | None = None

    def __call__(self) -> Instant:
        if self._at is None:
            self._at = later(self._begun, self._patience())
        return self._at

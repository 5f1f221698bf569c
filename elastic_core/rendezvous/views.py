"""The views that a keeper publishes, as the other threads of a node follow them: the last one, a wait for the next, and
listeners."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_core.log import get_logger
from elastic_core.rendezvous.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant

_LONGEST_WAIT: Duration = 60.0


class Views:
    """May be used from any thread; `take` is the keeper's.

    Attributes:
        last: the view published last.
        changed: the condition to wait on and to be notified by, also of other things that whoever waits looks at.
    """

    def __init__(self, clock: Clock) -> None:
        self.last = View()
        self.changed = threading.Condition()
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call it with every change of the state, an outage or a fault, in the thread of the keeper."""
        self._listeners.append(listener)

    def take(self, view: View) -> None:
        """Take over a new one. Only a change of its state, outage or fault is told."""
        with self.changed:
            before, self.last = self.last, view
            if (view.state, view.outage, view.fault) == (before.state, before.outage, before.fault):
                return
            self.changed.notify_all()
        for listener in self._listeners:
            try:
                listener()
            except Exception as error:  # noqa: BLE001 - the beats go on, whatever a listener does
                reason = f"a listener raised {type(error).__name__}: {error}"
                get_logger().warning("rendezvous fault", reason=reason, exc_info=error)

    def wait(self, deadline: Instant | None) -> bool:
        """Until one comes, or the deadline, or for a while. False when the deadline has passed. `changed` is held."""
        left_over = None if deadline is None else deadline - self._clock.now()
        if left_over is not None and left_over <= 0:
            return False
        self.changed.wait(_LONGEST_WAIT if left_over is None else min(left_over, _LONGEST_WAIT))
        return True

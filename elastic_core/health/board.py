"""The board: an observer that keeps what the agent does, for those who look at it from other threads."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.health import changes
from elastic_core.health.recovery import Marks
from elastic_core.interfaces.health import AgentPhase, AgentStatus
from elastic_core.interfaces.observer import PhaseChanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock
    from elastic_core.interfaces.observer import Fact


class StatusBoard:
    """Is called with the facts, see `interfaces.observer.Observer`; `status` and `subscribe` as in
    `interfaces.health.AgentView`, for any thread. All changes of the status happen here, in the agent's thread, one for
    each fact."""

    def __init__(self, run_id: str, node: str, role: str, max_restarts: int, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[], None]] = []
        self._marks = Marks()
        self._status = AgentStatus(
            version=1,
            run_id=run_id,
            node=node,
            role=role,
            phase=AgentPhase.JOINING,
            phase_since=clock.timestamp(),
            reason="has not begun yet",
            max_restarts=max_restarts,
        )

    def status(self) -> AgentStatus:
        return self._status

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._subscribers.append(changed)
        return lambda: self._forget(changed)

    def __call__(self, fact: Fact) -> None:
        now = self._clock.timestamp()
        status = changes.after(self._status, fact, now)
        if isinstance(fact, PhaseChanged):
            parts, self._marks = self._marks.parts(fact), self._marks.after(fact)
            status = changes.recovered(status, parts, now) if parts else status
        self._show(status)

    def _show(self, status: AgentStatus) -> None:
        with self._lock:
            self._status = replace(status, version=self._status.version + 1)
            subscribers = list(self._subscribers)
        for changed in subscribers:
            changed()

    def _forget(self, changed: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._subscribers.remove(changed)

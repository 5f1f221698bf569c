"""The board: an observer that keeps what the agent does, for those who look at it from other threads."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.health import changes
from elastic_core.health.recovery import Marks
from elastic_core.interfaces.health import AgentPhase, AgentStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock
    from elastic_core.interfaces.observer import (
        AgentFinished,
        PhaseChanged,
        RestartDecided,
        RoundFormed,
        WorkerExited,
        WorkerFailed,
        WorkersStarted,
    )


class StatusBoard:
    """See `interfaces.observer.Observer`; `status` and `subscribe` as in `interfaces.health.AgentView`, for any
    thread. All changes of the status happen here, in the agent's thread, one for each fact."""

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

    def round_formed(self, fact: RoundFormed) -> None:
        self._show(changes.round_formed(self._status, fact, self._clock.timestamp()))

    def workers_started(self, fact: WorkersStarted) -> None:
        self._show(changes.workers_started(self._status, fact))

    def worker_exited(self, fact: WorkerExited) -> None:
        self._show(changes.worker_exited(self._status, fact))

    def worker_failed(self, fact: WorkerFailed) -> None:
        self._show(changes.worker_failed(self._status, fact.failure))

    def restart_decided(self, fact: RestartDecided) -> None:
        self._show(changes.restart_decided(self._status, fact, self._clock.timestamp()))

    def agent_finished(self, fact: AgentFinished) -> None:
        self._show(changes.agent_finished(self._status, fact, self._clock.timestamp()))

    def phase_changed(self, fact: PhaseChanged) -> None:
        now, marks = self._clock.timestamp(), self._marks
        self._marks = marks.after(fact)
        status = changes.phase_changed(self._status, fact, now)
        parts = marks.parts(fact)
        self._show(changes.recovered(status, parts, now) if parts else status)

    def _show(self, status: AgentStatus) -> None:
        with self._lock:
            self._status = replace(status, version=self._status.version + 1)
            subscribers = list(self._subscribers)
        for changed in subscribers:
            changed()

    def _forget(self, changed: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._subscribers.remove(changed)

"""The status board: an observer that keeps the agent's status for health endpoints in other threads."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.health.changes import RecoveryMarks, after, recovered
from elastic_core.interfaces.health import AgentPhase, AgentStatus
from elastic_core.interfaces.observer import PhaseChanged, Recovered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock
    from elastic_core.interfaces.health import CheckStatus
    from elastic_core.interfaces.observer import Fact, Observer


class StatusBoard:
    """Receives facts in the agent's thread as an `interfaces.observer.Observer`, and can be read from any thread as an
    `interfaces.health.AgentView`. Each fact changes the status once. Until `follow` is called, the agent is assumed to
    be alive."""

    def __init__(self, run_id: str, node: str, role: str, max_restarts: int, clock: Clock) -> None:
        self._clock = clock
        self._loop_alive_at = clock.timestamp
        self._faults: Sequence[Callable[[], str]] = ()
        self._template_pid: Callable[[], int | None] = lambda: None
        self._not_signed: Callable[[], int] = lambda: 0
        self._checks: Callable[[], Sequence[CheckStatus]] = tuple
        self._on_recovered: Observer = lambda _: None
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[], None]] = []
        self._marks = RecoveryMarks()
        self._status = AgentStatus(
            version=1,
            run_id=run_id,
            node=node,
            role=role,
            phase=AgentPhase.JOINING,
            phase_since=clock.timestamp(),
            reason="not started yet",
            max_restarts=max_restarts,
        )

    def follow(
        self,
        loop_alive_at: Callable[[], float],
        faults: Sequence[Callable[[], str]] = (),
        template_pid: Callable[[], int | None] = lambda: None,
        not_signed: Callable[[], int] = lambda: 0,
        on_recovered: Observer = lambda _: None,
    ) -> None:
        """Connect the board to the agent.

        Args:
            loop_alive_at: returns the time at which the agent's loop last completed an iteration.
            faults: the `fault` method of each watchdog (see `interfaces.watchdog.Watchdog.fault`).
            template_pid: returns the process id of the worker starter's template process.
            not_signed: returns how many values without a valid signature the rendezvous has found.
            on_recovered: called in the agent's thread with each recovery.
        """
        self._loop_alive_at = loop_alive_at
        self._faults = faults
        self._template_pid = template_pid
        self._not_signed = not_signed
        self._on_recovered = on_recovered

    def alive_at(self) -> float:
        return self._loop_alive_at()

    def watchdog_fault(self) -> str:
        return "; ".join(found for fault in self._faults if (found := fault()))

    def template_pid(self) -> int | None:
        return self._template_pid()

    def not_signed(self) -> int:
        return self._not_signed()

    def have_checked(self, checks: Callable[[], Sequence[CheckStatus]]) -> None:
        """Set `checks`, a function that returns the latest results of the health checks."""
        self._checks = checks

    def checks(self) -> Sequence[CheckStatus]:
        return self._checks()

    def status(self) -> AgentStatus:
        return self._status

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._subscribers.append(changed)
        return lambda: self._unsubscribe(changed)

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, Recovered):
            return  # this board itself has reported the recovery
        now = self._clock.timestamp()
        status, parts = after(self._status, fact, now), None
        if isinstance(fact, PhaseChanged):
            parts, self._marks = self._marks.parts(fact), self._marks.after(fact)
            status = recovered(status, parts, now) if parts else status
        with self._lock:
            self._status = replace(status, version=self._status.version + 1)
            subscribers = list(self._subscribers)
        for changed in subscribers:
            changed()
        if parts is not None:
            self._on_recovered(Recovered(status.run_id, status.node, status.recoveries[-1]))

    def _unsubscribe(self, changed: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._subscribers.remove(changed)

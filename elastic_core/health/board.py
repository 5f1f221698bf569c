"""The status board, an observer that keeps the agent's status for health endpoints in other threads.

The functions that apply a fact to a status have no side effects. The new status depends only on the old status, the
fact, and the time in seconds since the epoch."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.interfaces.health import AgentPhase, AgentStatus, Recovery, RoundStatus, WorkerStatus
from elastic_core.interfaces.observer import (
    AgentFinished,
    PhaseChanged,
    Recovered,
    RestartDecided,
    RoundFormed,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.health import CheckStatus
    from elastic_core.interfaces.observer import Fact, Observer

KEPT = 100
"""The number of rounds, and of recoveries, that a status keeps. Older entries are dropped."""

_ENDING = (AgentPhase.STOPPING, AgentPhase.DRAINING)


def after(status: AgentStatus, fact: Fact, now: float) -> AgentStatus:
    """Return the status after this fact. `now` is in seconds since the epoch."""
    match fact:
        case RoundFormed():
            return _round_formed(status, fact, now)
        case WorkersStarted(pids=pids, ranks=ranks):
            workers = (WorkerStatus(rank, ranks.get(rank, -1), pid, "running") for rank, pid in sorted(pids.items()))
            return replace(status, workers=tuple(workers))
        case WorkerExited():
            state = "succeeded" if not fact.exitcode else "stopped" if fact.stopped else "failed"
            return _with_workers(status, lambda worker: state if worker.local_rank == fact.local_rank else worker.state)
        case WorkerFailed():
            return _worker_failed(status, fact.failure)
        case RestartDecided():
            return _restart_decided(status, fact, now)
        case AgentFinished():
            status = replace(status, restart_count=fact.restart_count)
            return _with_round_ended(status, fact.reason, now, fact.state.lower())
        case PhaseChanged():
            return _phase_changed(status, fact, now)
        case Recovered():
            return status


def _round_formed(status: AgentStatus, fact: RoundFormed, now: float) -> AgentStatus:
    members = tuple(fact.formed.members)
    formed = RoundStatus(
        number=fact.round,
        nodes=fact.group_world_size,
        group_rank=fact.group_rank,
        world_size=sum(member.local_world_size for member in members),
        formed_at=now,
        formed_because=fact.formed.reason,
        rendezvous=fact.seconds,
    )
    return replace(
        status,
        round=fact.round,
        group_rank=fact.group_rank,
        members=members,
        restart_count=fact.formed.restart_count,
        workers=(),
        rounds=(*status.rounds, formed)[-KEPT:],
    )


def _worker_failed(status: AgentStatus, failure: ProcessFailure) -> AgentStatus:
    """Apply a worker's failure. `last_failure` keeps the round's first failure, because it is the root cause."""
    last = status.last_failure
    if last is None or last.round != failure.round or (last.caused_by is not None and failure.caused_by is None):
        status = replace(status, last_failure=failure)
    return _with_workers(status, lambda worker: "failed" if worker.pid == failure.pid else worker.state)


def _restart_decided(status: AgentStatus, fact: RestartDecided, now: float) -> AgentStatus:
    counts = Counter(dict(status.restarts))
    counts[fact.cause] += 1
    restarts = tuple(sorted(counts.items()))
    status = replace(status, restarts=restarts, restart_count=fact.restart_count, max_restarts=fact.max_restarts)
    return _with_round_ended(status, fact.reason, now, fact.cause)


def _phase_changed(status: AgentStatus, fact: PhaseChanged, now: float) -> AgentStatus:
    """Apply a phase change. Stopping or draining ends the round, unless the node is waiting for the next round."""
    if fact.phase in _ENDING and status.phase is not AgentPhase.JOINING:
        status = _with_round_ended(status, fact.reason, now)
    since = status.phase_since if fact.phase is status.phase else now
    status = replace(status, phase=fact.phase, phase_since=since, reason=fact.reason, stop=fact.stop)
    if fact.phase is AgentPhase.FINISHING:
        return _with_running(status, "succeeded")
    if fact.phase in (AgentPhase.JOINING, AgentPhase.FINISHED):
        return _with_running(status, "stopped")
    return status


def _with_round_ended(status: AgentStatus, because: str, now: float, cause: str = "") -> AgentStatus:
    """Return the status after the last round has ended. If a cause is already recorded for that round, the status is
    unchanged."""
    if not status.rounds or status.rounds[-1].cause:
        return status
    last = status.rounds[-1]
    ended_at = now if last.ended_at is None else last.ended_at
    ended = replace(last, ended_at=ended_at, ended_because=because, cause=cause)
    return replace(status, rounds=(*status.rounds[:-1], ended))


def _with_running(status: AgentStatus, state: str) -> AgentStatus:
    return _with_workers(status, lambda worker: state if worker.state == "running" else worker.state)


def _with_workers(status: AgentStatus, state_of: Callable[[WorkerStatus], str]) -> AgentStatus:
    workers = tuple(replace(worker, state=state_of(worker)) for worker in status.workers)
    return replace(status, workers=workers)


@dataclass(frozen=True)
class RecoveryMarks:
    """When each part of the current recovery began, on the agent's clock. None means that the part has not begun."""

    sign: Instant | None = None
    stop: Instant | None = None
    join: Instant | None = None
    start: Instant | None = None

    def after(self, fact: PhaseChanged) -> RecoveryMarks:
        """Return the marks after a phase change. A phase begins when it is first reported. All marks are cleared when
        the workers run again, or when the node leaves or finishes."""
        if fact.phase is AgentPhase.STOPPING and self.stop is None:
            sign = fact.at if fact.sign is None else min(fact.sign, fact.at)
            return RecoveryMarks(sign, fact.at)
        if fact.phase is AgentPhase.JOINING and self.stop is not None and self.join is None:
            return replace(self, join=fact.at)
        if fact.phase is AgentPhase.STARTING and self.join is not None:
            return replace(self, start=fact.at)
        if fact.phase in (AgentPhase.RUNNING, AgentPhase.DRAINING, AgentPhase.FINISHED):
            return RecoveryMarks()
        return self

    def recovery(self, fact: PhaseChanged, status: AgentStatus, now: float) -> Recovery | None:
        """Return the recovery that this phase completes, or None if it completes none. The recovery leads from the
        status's second-to-last round to its last round."""
        if fact.phase is not AgentPhase.RUNNING or self.sign is None or self.stop is None:
            return None
        if self.join is None or self.start is None:
            return None
        before = status.rounds[-2] if len(status.rounds) > 1 else None
        return Recovery(
            round=status.round,
            cause=before.cause if before else "",
            reason=before.ended_because if before else "",
            at=now,
            detect=self.stop - self.sign,
            stop=self.join - self.stop,
            rendezvous=self.start - self.join,
            start=fact.at - self.start,
        )


class StatusBoard:
    """Collects facts into the agent's status. The agent's thread passes facts to the board, which is an
    `interfaces.observer.Observer`. Any thread may read the board, which is also an `interfaces.health.AgentView`.

    Each fact changes the status once. Until `follow` is called, the agent is assumed to be alive."""

    def __init__(self, run_id: str, node: str, role: str, max_restarts: int, clock: Clock) -> None:
        self._clock = clock
        self._checks: Callable[[], Sequence[CheckStatus]] = tuple
        self.follow(clock.timestamp)
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
            loop_alive_at: returns when the agent's loop last completed an iteration.
            faults: the `fault` method of each watchdog (see `interfaces.workers.Watchdog.fault`).
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
        """Set the function that returns the latest results of the health checks."""
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
        status, recovery = after(self._status, fact, now), None
        if isinstance(fact, PhaseChanged):
            recovery = self._marks.recovery(fact, status, now)
            self._marks = self._marks.after(fact)
        if recovery is not None:
            status = replace(status, recoveries=(*status.recoveries, recovery)[-KEPT:])
        with self._lock:
            self._status = replace(status, version=self._status.version + 1)
            subscribers = list(self._subscribers)
        for changed in subscribers:
            changed()
        if recovery is not None:
            self._on_recovered(Recovered(status.run_id, status.node, recovery))

    def _unsubscribe(self, changed: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._subscribers.remove(changed)

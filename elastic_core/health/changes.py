"""What each fact changes in the status of an agent. Pure: the status before, the fact, and the time of day (seconds
since the epoch) give the status after."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.interfaces.health import AgentPhase, Recovery, RoundStatus, WorkerStatus
from elastic_core.interfaces.observer import (
    AgentFinished,
    RestartDecided,
    RoundFormed,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.errors import ProcessFailure
    from elastic_core.health.recovery import Parts
    from elastic_core.interfaces.health import AgentStatus
    from elastic_core.interfaces.observer import Fact, PhaseChanged

KEPT = 100
"""How many rounds and recoveries a status holds: the last."""

_ENDING = (AgentPhase.STOPPING, AgentPhase.DRAINING)


def after(status: AgentStatus, fact: Fact, now: float) -> AgentStatus:
    """The status after this fact."""
    if isinstance(fact, RoundFormed):
        return _round_formed(status, fact, now)
    if isinstance(fact, WorkersStarted):
        return _workers_started(status, fact)
    if isinstance(fact, WorkerExited):
        return _worker_exited(status, fact)
    if isinstance(fact, WorkerFailed):
        return _worker_failed(status, fact.failure)
    if isinstance(fact, RestartDecided):
        return _restart_decided(status, fact, now)
    if isinstance(fact, AgentFinished):
        return _agent_finished(status, fact, now)
    return _phase_changed(status, fact, now)


def _round_formed(status: AgentStatus, fact: RoundFormed, now: float) -> AgentStatus:
    members = tuple(fact.formed.members) if fact.formed else ()
    formed = RoundStatus(
        number=fact.round,
        nodes=fact.group_world_size,
        group_rank=fact.group_rank,
        world_size=sum(member.local_world_size for member in members),
        formed_at=now,
        formed_because=fact.formed.reason if fact.formed else "",
        rendezvous=fact.seconds,
    )
    return replace(
        status,
        round=fact.round,
        group_rank=fact.group_rank,
        members=members,
        restart_count=fact.formed.restart_count if fact.formed else status.restart_count,
        workers=(),
        rounds=(*status.rounds, formed)[-KEPT:],
    )


def _workers_started(status: AgentStatus, fact: WorkersStarted) -> AgentStatus:
    workers = (WorkerStatus(rank, fact.ranks.get(rank, -1), pid, "running") for rank, pid in sorted(fact.pids.items()))
    return replace(status, workers=tuple(workers))


def _worker_exited(status: AgentStatus, fact: WorkerExited) -> AgentStatus:
    state = "failed" if fact.exitcode else "succeeded"
    return _with_workers(status, lambda worker: state if worker.local_rank == fact.local_rank else worker.state)


def _worker_failed(status: AgentStatus, failure: ProcessFailure) -> AgentStatus:
    """The last failure is the one that others of its round followed from, if it is known."""
    last = status.last_failure
    if last is None or last.round != failure.round or (last.caused_by is not None and failure.caused_by is None):
        status = replace(status, last_failure=failure)
    return _with_workers(status, lambda worker: "failed" if worker.pid == failure.pid else worker.state)


def _restart_decided(status: AgentStatus, fact: RestartDecided, now: float) -> AgentStatus:
    counts = dict(status.restarts)
    counts[fact.cause] = counts.get(fact.cause, 0) + 1
    status = replace(
        status,
        restarts=tuple(sorted(counts.items())),
        restart_count=fact.restart_count,
        max_restarts=fact.max_restarts,
    )
    return _with_round_ended(status, fact.reason, now, fact.cause)


def _agent_finished(status: AgentStatus, fact: AgentFinished, now: float) -> AgentStatus:
    status = replace(status, restart_count=fact.restart_count)
    return _with_round_ended(status, fact.reason, now, fact.state.lower())


def _phase_changed(status: AgentStatus, fact: PhaseChanged, now: float) -> AgentStatus:
    """Who leaves while it waits for the next round ends none by that."""
    if fact.phase in _ENDING and status.phase is not AgentPhase.JOINING:
        status = _with_round_ended(status, fact.reason, now)
    since = status.phase_since if fact.phase is status.phase else now
    status = replace(status, phase=fact.phase, phase_since=since, reason=fact.reason)
    if fact.phase is AgentPhase.FINISHING:
        return _with_running(status, "succeeded")
    if fact.phase in (AgentPhase.JOINING, AgentPhase.FINISHED):
        return _with_running(status, "stopped")
    return status


def recovered(status: AgentStatus, parts: Parts, now: float) -> AgentStatus:
    """The last round has taken the place of the one before it."""
    before = status.rounds[-2] if len(status.rounds) > 1 else None
    cause, reason = (before.cause, before.ended_because) if before else ("", "")
    recovery = Recovery(status.round, cause, reason, now, *parts)
    return replace(status, recoveries=(*status.recoveries, recovery)[-KEPT:])


def _with_round_ended(status: AgentStatus, because: str, now: float, cause: str = "") -> AgentStatus:
    """The last round has ended; what was said with a cause stands."""
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

"""The status as JSON: the schema that docs/health.md describes. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure
    from elastic_core.health import Probe
    from elastic_core.interfaces.health import AgentStatus, Recovery, WorkerStatus
    from elastic_http_health.usage import Usage

SCHEMA = 1
"""Grows when a reader of the one before could be misled; new fields alone are no such thing."""

_LONGEST = 65536  # characters of one text that a script or another node may have written
_MOST_LINES = 200


def status_document(
    status: AgentStatus, alive: Probe, ready: Probe, usage: Mapping[int, Usage], now: float
) -> dict[str, Any]:
    """All of it."""
    return {
        "version": SCHEMA,
        **changes_document(status, alive, ready, usage, now),
        "run_id": status.run_id,
        "node": status.node,
        "role": status.role,
        "phase": status.phase.value,
        "phase_since": status.phase_since,
        "reason": status.reason,
        "round": status.round,
        "group_rank": status.group_rank,
        "members": [{"group_rank": rank, **member._asdict()} for rank, member in enumerate(status.members)],
        "restart_count": status.restart_count,
        "max_restarts": status.max_restarts,
        "restarts": dict(status.restarts),
        "rounds": [asdict(formed) for formed in status.rounds],
        "recoveries": [_recovery(recovery) for recovery in status.recoveries],
        "last_failure": status.last_failure and _failure(status.last_failure),
    }


def changes_document(
    status: AgentStatus, alive: Probe, ready: Probe, usage: Mapping[int, Usage], now: float
) -> dict[str, Any]:
    """What may be another each second, and the number of the change since which the rest is what it is."""
    return {
        "change": status.version,
        "now": now,
        "alive": alive._asdict(),
        "ready": ready._asdict(),
        "workers": [_worker(worker, usage.get(worker.pid)) for worker in status.workers],
    }


def _worker(worker: WorkerStatus, usage: Usage | None) -> dict[str, Any]:
    return {
        **asdict(worker),
        "cpu_seconds": round(usage.cpu_seconds, 2) if usage else None,
        "memory_bytes": usage.memory_bytes if usage else None,
    }


def _recovery(recovery: Recovery) -> dict[str, Any]:
    return {**asdict(recovery), "total": recovery.total}


def _failure(failure: ProcessFailure) -> dict[str, Any]:
    """Without what the script wrote as data, which may be of any depth."""
    return {
        "node": failure.node,
        "round": failure.round,
        "role": failure.role,
        "local_rank": failure.local_rank,
        "global_rank": failure.global_rank,
        "pid": failure.pid,
        "timestamp": failure.timestamp,
        "exitcode": failure.exitcode,
        "signal": failure.signal_name() if failure.exitcode < 0 else None,
        "reason": failure.reason,
        "message": failure.message[:_LONGEST],
        "stack": failure.stack[:_LONGEST],
        "stderr_tail": [line[:_LONGEST] for line in failure.stderr_tail[-_MOST_LINES:]],
        "caused_by": failure.caused_by,
    }

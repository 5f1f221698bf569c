"""The agent's status as JSON. docs/reference/health.md describes the schema. This module does no I/O."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.plugin import AgentStatus, CheckStatus, Probe, ProcessFailure, WorkerStatus
    from elastic_http_health.usage import Usage

SCHEMA = 1
"""The schema version. It increases with each incompatible change, but not when a field is added."""

_LONGEST = 65536  # maximum characters of a string that may come from a script or another node
_MOST_LINES = 200
_PLAIN = ("run_id", "node", "role", "phase_since", "reason", "round", "group_rank", "restart_count", "max_restarts")
_PLAIN_OF_A_FAILURE = (
    *("node", "round", "role", "local_rank", "global_rank", "pid"),
    *("timestamp", "exitcode", "reason", "caused_by"),
)


class Observation(NamedTuple):
    """All data about the agent at one moment. `now` is in seconds since the epoch. `template` is the process id of the
    template from which workers are forked. For `not_signed`, see `AgentView`."""

    status: AgentStatus
    alive: Probe
    ready: Probe
    usage: Mapping[int, Usage]
    now: float
    template: int | None = None
    not_signed: int = 0
    checks: Sequence[CheckStatus] = ()


def status_json(seen: Observation) -> bytes:
    """Return the complete status as JSON."""
    status = seen.status
    return _as_json(
        {
            "version": SCHEMA,
            **_changes(seen),
            **{name: getattr(status, name) for name in _PLAIN},
            "phase": status.phase.value,
            "stop": status.stop and asdict(status.stop),
            "members": [{"group_rank": rank, **member._asdict()} for rank, member in enumerate(status.members)],
            "restarts": dict(status.restarts),
            "rounds": [asdict(formed) for formed in status.rounds],
            "recoveries": [{**asdict(recovery), "total": recovery.total} for recovery in status.recoveries],
            "last_failure": status.last_failure and _failure(status.last_failure),
        }
    )


def changes_json(seen: Observation) -> bytes:
    """Return, as JSON, the fields that may change every second and the version of the rest of the status."""
    return _as_json(_changes(seen))


def _as_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def _changes(seen: Observation) -> dict[str, Any]:
    return {
        "change": seen.status.version,
        "now": seen.now,
        "alive": seen.alive._asdict(),
        "ready": seen.ready._asdict(),
        "template": _template(seen),
        "not_signed": seen.not_signed,
        "checks": [_check(check) for check in seen.checks],
        "workers": [_worker(worker, seen.usage.get(worker.pid)) for worker in seen.status.workers],
    }


def _check(check: CheckStatus) -> dict[str, Any]:
    """Return a check's fields. `level` is `pending` until the first result."""
    result = check.result
    return {
        "name": check.name,
        "summary": check.summary,
        "level": result.level.value if result else "pending",
        "message": result.message[:_LONGEST] if result else "",
        "remedy": result.remedy[:_LONGEST] if result else "",
        "checked_at": check.checked_at,
    }


def _template(seen: Observation) -> dict[str, Any] | None:
    if seen.template is None:
        return None
    usage = seen.usage.get(seen.template)
    return {"pid": seen.template, "memory_bytes": usage.memory_bytes if usage else None}


def _worker(worker: WorkerStatus, usage: Usage | None) -> dict[str, Any]:
    return {
        **asdict(worker),
        "cpu_seconds": round(usage.cpu_seconds, 2) if usage else None,
        "memory_bytes": usage.memory_bytes if usage else None,
    }


def _failure(failure: ProcessFailure) -> dict[str, Any]:
    """Return the failure's fields. The script's extra data is omitted, because it may be nested arbitrarily deep."""
    return {
        **{name: getattr(failure, name) for name in _PLAIN_OF_A_FAILURE},
        "signal": failure.signal_name() if failure.exitcode < 0 else None,
        "message": failure.message[:_LONGEST],
        "stack": failure.stack[:_LONGEST],
        "stderr_tail": [line[:_LONGEST] for line in failure.stderr_tail[-_MOST_LINES:]],
    }

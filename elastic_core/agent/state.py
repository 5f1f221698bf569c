"""States of workers and groups, and what a run came to."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_core.errors import ProcessFailure


class WorkerState(str, enum.Enum):
    """State of a worker group; all its workers share it. The names are torch's.

    UNKNOWN: the agent has lost track; INIT: being started; HEALTHY: running; UNHEALTHY: running but not well;
    STOPPED: ended by the agent; SUCCEEDED, FAILED: ended by themselves.
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Whether processes of the group exist."""
        return state in RUNNING


RUNNING = frozenset({WorkerState.HEALTHY, WorkerState.UNHEALTHY})


@dataclass(frozen=True)
class RunResult:
    """What the workers of this node came to: all succeeded, or at least one failed. Keys are global ranks.

    `return_values` has meaning for functions. `failures` holds the workers that ended badly by themselves; those
    that the agent stopped are in neither.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether the job failed on this node."""
        return self.state is WorkerState.FAILED

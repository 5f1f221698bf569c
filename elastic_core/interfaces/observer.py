"""The facts that the agent reports to observers, as frozen records. Each fact's hook is named after its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_core.clock import Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.health import AgentPhase, Recovery, StopStatus
    from elastic_core.interfaces.node import Round
    from elastic_core.interfaces.workers import RoundPlan


@dataclass(frozen=True)
class RoundFormed:
    """This node is a member of a new round, for which it waited `seconds` seconds. `formed` describes the round with
    all its members. Reports omit `formed` because it may be long."""

    run_id: str
    round: int
    group_rank: int
    group_world_size: int
    seconds: float
    formed: Round = field(repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the record without the members, for reports."""
        return {name: value for name, value in vars(self).items() if name != "formed"}


@dataclass(frozen=True)
class WorkersStarted:
    """The workers of this node have started. `pids` maps their local ranks to process ids, and `ranks` maps their local
    ranks to global ranks."""

    run_id: str
    round: int
    pids: Mapping[int, int]
    ranks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerExited:
    """A worker of this node has exited, on its own or because the agent `stopped` it. `exitcode` has the same meaning
    as in `subprocess`. The event is reported as soon as the agent notices the exit."""

    run_id: str
    round: int
    local_rank: int
    exitcode: int
    stopped: bool = False


@dataclass(frozen=True)
class WorkerFailed:
    """A worker of this node has failed. Reported once per failed worker, after the group has stopped."""

    run_id: str
    failure: ProcessFailure


@dataclass(frozen=True)
class RestartDecided:
    """The group is restarting. `cause` is `failure`, `hang`, `node lost` or `membership` (nodes joined or left, or this
    node lost contact). `restart_count` counts failures only."""

    run_id: str
    round: int
    cause: str
    reason: str
    restart_count: int
    max_restarts: int


@dataclass(frozen=True)
class AgentFinished:
    """The agent is done. `state` is SUCCEEDED, FAILED or STOPPED."""

    run_id: str
    state: str
    reason: str
    restart_count: int


@dataclass(frozen=True)
class PhaseChanged:
    """The agent's phase, the reason for it, or `stop` has changed. `reason` may be empty. `stop` shows which workers
    have saved, if workers save before a stop.

    `at` is the time of the change. `sign` is the time of the first sign of the change's reason, if that was earlier.
    Both times are on the monotonic clock."""

    run_id: str
    phase: AgentPhase
    reason: str
    at: Instant
    sign: Instant | None = None
    stop: StopStatus | None = None


@dataclass(frozen=True)
class Recovered:
    """This node's workers are running again in a new round. `recovery` contains the cause and the duration of each
    step."""

    run_id: str
    node: str
    recovery: Recovery


Fact = (
    RoundFormed
    | WorkersStarted
    | WorkerExited
    | WorkerFailed
    | RestartDecided
    | AgentFinished
    | PhaseChanged
    | Recovered
)
Observer = Callable[[Fact], object]
"""A function that the agent's thread calls with each fact. It must not raise."""


EnvironmentContributor = Callable[["RoundPlan"], Mapping[str, str]]
"""A function that returns additional environment variables for a round's workers."""

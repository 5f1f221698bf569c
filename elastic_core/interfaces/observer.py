"""What the agent tells those who watch: past-tense facts, as frozen records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.clock import Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.health import AgentPhase
    from elastic_core.interfaces.node import Round
    from elastic_core.interfaces.workers import RoundPlan


@dataclass(frozen=True)
class RoundFormed:
    """This node is a member of a new round. `seconds` is the time it waited for it. `formed` is what all members agreed
    on; it holds every one of them, so it is for those who look, and part of no report."""

    run_id: str
    round: int
    group_rank: int
    group_world_size: int
    seconds: float
    formed: Round | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """For reports, without the members."""
        return {name: value for name, value in vars(self).items() if name != "formed"}


@dataclass(frozen=True)
class WorkersStarted:
    """The workers of this node run. `pids` maps local rank to process id, `ranks` to global rank."""

    run_id: str
    round: int
    pids: Mapping[int, int]
    ranks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerExited:
    """A worker of this node has ended by itself, which was just noticed. `exitcode`: as in `subprocess`."""

    run_id: str
    round: int
    local_rank: int
    exitcode: int


@dataclass(frozen=True)
class WorkerFailed:
    """A worker of this node failed; told once per failed worker, after the group was stopped."""

    run_id: str
    failure: ProcessFailure


@dataclass(frozen=True)
class RestartDecided:
    """The group starts again. `cause` is `failure`, `hang` or `membership`; `restart_count` counts failures only."""

    run_id: str
    round: int
    cause: str
    reason: str
    restart_count: int
    max_restarts: int


@dataclass(frozen=True)
class AgentFinished:
    """The agent is done. `state` is SUCCEEDED, FAILED or STOPPED; `reason` says why."""

    run_id: str
    state: str
    reason: str
    restart_count: int


@dataclass(frozen=True)
class PhaseChanged:
    """The agent does something else now, or has another reason to do it; `reason` may be empty. On the agent's
    monotonic clock: `at`, and `sign`, when the first sign of that reason showed, if it was before `at`."""

    run_id: str
    phase: AgentPhase
    reason: str
    at: Instant
    sign: Instant | None = None


Fact = RoundFormed | WorkersStarted | WorkerExited | WorkerFailed | RestartDecided | AgentFinished | PhaseChanged
"""One of these."""

Observer = Callable[[Fact], object]
"""Is called with one fact after another, in the agent's thread; must not raise. Plugins are told all of them but the
exits and the phases, which are for those who show what goes on."""


class EnvironmentContributor(Protocol):
    """Gives variables to the workers of a round."""

    def __call__(self, plan: RoundPlan) -> Mapping[str, str]: ...

"""What the agent tells those who watch: past-tense facts, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.workers import RoundPlan


@dataclass(frozen=True)
class RoundFormed:
    """This node is a member of a new round. `seconds` is the time it waited for it."""

    run_id: str
    round: int
    group_rank: int
    group_world_size: int
    seconds: float


@dataclass(frozen=True)
class WorkersStarted:
    """The workers of this node run. `pids` maps local rank to process id."""

    run_id: str
    round: int
    pids: Mapping[int, int]


@dataclass(frozen=True)
class WorkerFailed:
    """A worker of this node failed; told once per failed worker, after the group was stopped."""

    run_id: str
    failure: ProcessFailure


@dataclass(frozen=True)
class RestartDecided:
    """The group starts again. `cause` is `failure` or `membership`; `restart_count` counts failures only."""

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


class Observer(Protocol):
    """Receives the facts. Called in the agent's thread; must not raise."""

    def round_formed(self, fact: RoundFormed) -> None: ...

    def workers_started(self, fact: WorkersStarted) -> None: ...

    def worker_failed(self, fact: WorkerFailed) -> None: ...

    def restart_decided(self, fact: RestartDecided) -> None: ...

    def agent_finished(self, fact: AgentFinished) -> None: ...


class SilentObserver:
    """An observer for agents that nobody watches."""

    def round_formed(self, fact: RoundFormed) -> None:
        pass

    def workers_started(self, fact: WorkersStarted) -> None:
        pass

    def worker_failed(self, fact: WorkerFailed) -> None:
        pass

    def restart_decided(self, fact: RestartDecided) -> None:
        pass

    def agent_finished(self, fact: AgentFinished) -> None:
        pass


class EnvironmentContributor(Protocol):
    """Gives variables to the workers of a round."""

    def __call__(self, plan: RoundPlan) -> Mapping[str, str]: ...

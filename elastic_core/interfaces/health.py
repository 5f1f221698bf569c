"""The interfaces of health endpoints and health checks. An endpoint reports whether the agent is healthy, and its
status. A check examines the machine."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.node import Member


class AgentPhase(str, enum.Enum):
    """What an agent does.

    JOINING: it waits for the next round. STARTING: a round has formed, and the agent starts the workers. RUNNING: the
    workers run. STOPPING: the agent stops the workers, and then joins the next round. DRAINING: the agent stops the
    workers, and leaves the job because it was asked to. FINISHING: its workers have succeeded, and workers of other
    nodes still run. FINISHED: the agent is done.
    """

    JOINING = "joining"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DRAINING = "draining"
    FINISHING = "finishing"
    FINISHED = "finished"


class CheckLevel(str, enum.Enum):
    """WARNING: a run may start, and suffer. FAILURE: a run would not work on this machine."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class CheckResult:
    """The result of a health check.

    Args:
        message: the finding, in a sentence without a period.
        remedy: advice; empty if none is needed.
    """

    level: CheckLevel
    message: str
    remedy: str = ""


class CheckMoment(str, enum.Enum):
    """When a health check is made. BEFORE_RUN: by `elastic doctor`. RUNNING: while a job runs, for its health endpoint,
    at most once a minute and only if somebody asks."""

    BEFORE_RUN = "before a run"
    RUNNING = "running"


@dataclass(frozen=True)
class HealthCheck:
    """A health check of a plugin, ready to be made. `make` may block, and raise anything.

    Args:
        timeout: seconds after which it has failed.
        plugin: the distribution that it comes from.
    """

    name: str
    summary: str
    timeout: float
    make: Callable[[], object]
    plugin: str = ""


@dataclass(frozen=True)
class CheckStatus:
    """The last result of a health check of a running job.

    Args:
        result: None before the first.
        checked_at: when the check began, in seconds since the epoch; 0 before the first.
    """

    name: str
    summary: str
    result: CheckResult | None = None
    checked_at: float = 0.0


@dataclass(frozen=True)
class WorkerStatus:
    """One worker of this node in the last round. `state`: `running`, `succeeded`, `failed` or `stopped` (the agent
    stopped it)."""

    local_rank: int
    global_rank: int
    pid: int
    state: str


@dataclass(frozen=True)
class RoundStatus:
    """One round that this node was a member of.

    Args:
        formed_at, ended_at: seconds since the epoch; None while it runs.
        formed_because: why it formed at that moment.
        ended_because: why it ended, in words; empty while it runs.
        cause: `failure`, `hang`, `node lost` or `membership` if another round was to follow; `succeeded`, `failed` or
            `stopped` if not; empty while the round runs, and until the job has decided why it ended and whether another
            one may follow.
        rendezvous: seconds that this node waited for the round.
    """

    number: int
    nodes: int
    group_rank: int
    world_size: int
    formed_at: float
    formed_because: str = ""
    ended_at: float | None = None
    ended_because: str = ""
    cause: str = ""
    rendezvous: float = 0.0


@dataclass(frozen=True)
class Recovery:
    """How one round replaced another. All durations are in seconds, and follow one another.

    Args:
        round: the number of the new round.
        cause, reason: why the previous round ended.
        at: when the workers ran again, in seconds since the epoch.
        detect: from the first sign (an exit that was noticed, the deadline of a timer, a report of another node) until
            the agent began to stop the workers.
        stop: until no worker ran.
        rendezvous: until the new round had formed.
        start: until its workers ran.
    """

    round: int
    cause: str
    reason: str
    at: float
    detect: float
    stop: float
    rendezvous: float
    start: float

    @property
    def total(self) -> float:
        return self.detect + self.stop + self.rendezvous + self.start


@dataclass(frozen=True)
class AgentStatus:
    """An agent at one moment.

    Args:
        version: grows with every change.
        phase_since: seconds since the epoch.
        reason: the reason of the phase, in words; may be empty.
        round: the number of the last round; 0 before the first.
        group_rank: the group rank of this node in that round; -1 before the first.
        members: the members of that round, in rank order.
        rounds: the last rounds, oldest first.
        recoveries: the last recoveries, oldest first.
        restarts: the number of all restarts so far, by cause.
        last_failure: the first failure of the last round that failed on this node.
    """

    version: int
    run_id: str
    node: str
    role: str
    phase: AgentPhase
    phase_since: float
    reason: str = ""
    round: int = 0
    group_rank: int = -1
    members: Sequence[Member] = ()
    restart_count: int = 0
    max_restarts: int = 0
    workers: tuple[WorkerStatus, ...] = ()
    rounds: tuple[RoundStatus, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    restarts: tuple[tuple[str, int], ...] = ()
    last_failure: ProcessFailure | None = None


class AgentView(Protocol):
    """What a health endpoint sees of the agent. May be called from any thread; every call returns at once."""

    def alive_at(self) -> float:
        """When the agent's loop was last seen alive, in seconds since the epoch: now, while it waits for events."""

    def watchdog_fault(self) -> str:
        """Why the configured watchdog does not watch the workers; empty if it does, or if there is none."""

    def template_pid(self) -> int | None:
        """The process from which workers are forked, with `--warm-start`; None while there is none."""

    def not_signed(self) -> int:
        """In how many places of the rendezvous store something stood that is not signed with the job's secret."""

    def checks(self) -> Sequence[CheckStatus]:
        """The last results of the health checks of plugins. Checks that were made more than a minute ago begin again in
        the background."""

    def status(self) -> AgentStatus:
        """What the agent does at this moment."""

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every change of the status, in the agent's thread; it must return at once. Returns a
        function that ends the subscription."""


class HealthCheckServer(abc.ABC):
    """The agent starts it before the first rendezvous and stops it last. Factories receive the agent's view, `port`,
    and `timeout`: after so many seconds without a sign of life from its loop the agent counts as stuck."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to answer. Raises OSError if the port is not available."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop answering, and release the port. Idempotent; ends within a bound."""

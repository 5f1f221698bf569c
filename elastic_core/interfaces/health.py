"""Interfaces for health endpoints, which report the agent's status, and for health checks, which examine a machine."""

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
    """What an agent is doing.

    JOINING: waiting for the next round. STARTING: a round has formed, and the agent is starting the workers. RUNNING:
    the workers are running. STOPPING: the agent is stopping the workers before it joins the next round. DRAINING: the
    agent is stopping the workers in order to leave the job, as requested. FINISHING: this node's workers have
    succeeded, but workers of other nodes are still running. FINISHED: the agent is done.
    """

    JOINING = "joining"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DRAINING = "draining"
    FINISHING = "finishing"
    FINISHED = "finished"


class CheckLevel(str, enum.Enum):
    """The severity of a finding. SKIPPED means that there was nothing to check, for example because the feature is not
    configured. WARNING means that a run would start but may have problems. FAILURE means that a run would not work on
    this machine."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class CheckResult:
    """The result of a health check.

    Args:
        message: the finding, as a sentence without a period.
        remedy: what the user should do, or an empty string if there is nothing to do.
        name: what was checked, if the check has several results. It is shown before the message. Empty means the name
            of the check.
    """

    level: CheckLevel
    message: str
    remedy: str = ""
    name: str = ""


class CheckMoment(str, enum.Enum):
    """When a health check runs. BEFORE_RUN checks run in `elastic doctor`. RUNNING checks run during a job when a
    client queries the agent's health endpoint, but at most once a minute."""

    BEFORE_RUN = "before a run"
    RUNNING = "running"


@dataclass(frozen=True)
class HealthCheck:
    """A plugin's health check. `make` runs the check, and may block or raise any exception. It returns a `CheckResult`
    or, if there can be several, a tuple of them.

    Args:
        timeout: the number of seconds after which the check is considered failed.
        plugin: the distribution that provides the check.
    """

    name: str
    summary: str
    timeout: float
    make: Callable[[], object]
    plugin: str = ""


@dataclass(frozen=True)
class CheckStatus:
    """The last result of a health check while a job runs.

    Args:
        name: the check's name and, if it has several results, what was checked: `mounts: /data`.
        result: None until the check has run once.
        checked_at: the start of the check's last run, in seconds since the epoch; 0 until the check has run once.
    """

    name: str
    summary: str
    result: CheckResult | None = None
    checked_at: float = 0.0


@dataclass(frozen=True)
class WorkerStatus:
    """A worker of this node in the last round. Its state is `running`, `succeeded`, `failed`, or `stopped` (by the
    agent)."""

    local_rank: int
    global_rank: int
    pid: int
    state: str


@dataclass(frozen=True)
class RoundStatus:
    """One round that this node was a member of.

    Args:
        formed_at, ended_at: times in seconds since the epoch; `ended_at` is None while the round is running.
        formed_because: why the round formed at that moment.
        ended_because: why the round ended; empty while the round is running.
        cause: `failure`, `hang`, `node lost` or `membership` if another round follows; otherwise `succeeded`, `failed`
            or `stopped`. Empty until the round has ended and the cause has been decided.
        rendezvous: how many seconds this node waited for the round to form.
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
    """How one round was replaced by the next. The four durations are in seconds, and each begins when the previous
    one ends.

    Args:
        round: the number of the new round.
        cause, reason: why the previous round ended.
        at: the time at which the workers were running again, in seconds since the epoch.
        detect: the time from the first sign (a worker exit, an expired timer, another node's report) until the agent
            began to stop the workers.
        stop: the time until all workers had stopped.
        rendezvous: the time until the new round had formed.
        start: the time until the new round's workers were running.
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
class StopStatus:
    """The progress of this node's workers while they save before a stop. All workers save after the same step.

    Args:
        round: the number of the workers' round.
        step: the step after which the workers save; all nodes have agreed on it.
        since: the time at which the agent asked the workers to stop, in seconds since the epoch.
        deadline: the time at which the workers are killed, in seconds since the epoch.
        saved, unsaved: the global ranks of this node's workers that have saved, and of those that have not.
    """

    round: int
    step: int
    since: float
    deadline: float
    saved: tuple[int, ...]
    unsaved: tuple[int, ...]


@dataclass(frozen=True)
class AgentStatus:
    """A snapshot of an agent.

    Args:
        version: increases with every change.
        phase_since: the time at which the phase began, in seconds since the epoch.
        reason: the reason for the phase; may be empty.
        stop: which workers have saved; None unless they are saving before a stop.
        round: the number of the last round; 0 before the first round.
        group_rank: this node's group rank in that round; -1 before the first round.
        members: the members of that round, in rank order.
        rounds: the last rounds, oldest first.
        recoveries: the last recoveries, oldest first.
        restarts: the number of restarts so far, by cause.
        last_failure: the first failure in the latest round in which a worker of this node failed.
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
    stop: StopStatus | None = None


class AgentView(Protocol):
    """A health endpoint's view of the agent. Any thread may call the methods; none of them blocks."""

    def alive_at(self) -> float:
        """Return the time at which the agent's event loop was last known to be alive, in seconds since the epoch. While
        the loop is waiting for events, this is the current time."""

    def watchdog_fault(self) -> str:
        """Return why the configured watchdog is not watching the workers. The result is empty if the watchdog is
        watching them, or if none is configured."""

    def template_pid(self) -> int | None:
        """Return the id of the process from which `--warm-start` forks workers, or None while there is no such
        process."""

    def not_signed(self) -> int:
        """Return the number of locations in the rendezvous store at which a value had no valid signature."""

    def checks(self) -> Sequence[CheckStatus]:
        """Return the last results of the plugins' health checks. Checks whose results are older than a minute are run
        again in the background."""

    def status(self) -> AgentStatus:
        """Return the current status."""

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` in the agent's thread after every change of the status. `changed` must not block. Returns a
        function that ends the subscription."""


class HealthCheckServer(abc.ABC):
    """A health endpoint. The agent starts it before the first rendezvous and stops it after everything else."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start serving requests. Raises OSError if the port is not available."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop serving and release the port. Idempotent. Must return within bounded time."""

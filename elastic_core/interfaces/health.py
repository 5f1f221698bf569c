"""What the agent tells a health endpoint, and what it knows of one: something that others ask whether this agent is
well, and what it does."""

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

    JOINING: it waits for the next round. STARTING: a round has formed, and its workers are being started. RUNNING: they
    run. STOPPING: they are being stopped, and the next round comes after that. DRAINING: the same, and this node does
    not come back: it was asked to leave. FINISHING: its workers have succeeded, those of other nodes not yet. FINISHED:
    it is done.
    """

    JOINING = "joining"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DRAINING = "draining"
    FINISHING = "finishing"
    FINISHED = "finished"


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
        formed_because: why it formed just then.
        ended_because: why it ended, in words; empty while it runs.
        cause: `failure`, `hang` or `membership` if another one was to follow; `succeeded`, `failed` or `stopped` if
            none was; empty while it runs, and until the job has judged whether another one may follow.
        rendezvous: seconds that this node waited for it.
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
    """How one round took the place of another; all times in seconds.

    Args:
        round: the number of the round that came.
        cause, reason: why the one before it ended.
        at: when it had come back, seconds since the epoch.
        detect: from the first sign (an exit that was noticed, a timer that should have been released, the others' word)
            until the workers began to be stopped.
        stop: until none of them ran.
        rendezvous: until the round had formed.
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
        reason: of the phase, in words; may be empty.
        round: the number of the last round; 0 before the first.
        group_rank: of this node in it; -1 before the first.
        members: of it, in rank order.
        rounds: the last of them, oldest first.
        recoveries: the last of them, oldest first.
        restarts: how many there were, by cause, all told.
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
    """What a health endpoint sees of the agent. Any thread; every call returns at once."""

    def alive_at(self) -> float:
        """When the agent's loop last turned, seconds since the epoch; one that waits for events is alive now."""
        ...

    def watchdog_fault(self) -> str:
        """Why nobody watches the workers although somebody should; empty while all is well."""
        ...

    def status(self) -> AgentStatus:
        """What it does."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every change of the status, in the agent's thread: it must return at once. Returns what
        ends that."""
        ...


class HealthCheckServer(abc.ABC):
    """Started before the first rendezvous and stopped last. Factories receive the agent's view, `port` and `timeout`:
    seconds without a turn of the agent's loop after which it may be called stuck."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to answer. Raises OSError when the port cannot be had."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop answering and release the port. Idempotent; bounded."""

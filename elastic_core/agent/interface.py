"""The interface for programs that run or subclass an agent: the specification of its workers, the workers, and the
agent's result."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.backend import Store
    from elastic_core.interfaces.handler import RendezvousHandler

DEFAULT_ROLE = "default"


class WorkerState(str, enum.Enum):
    """The state of a worker group, which applies to all its workers. The names are torch's.

    Attributes:
        UNKNOWN: the agent does not know the state.
        INIT: the workers are starting.
        HEALTHY: the workers are running.
        UNHEALTHY: the workers are running, but the group has failed.
        STOPPED: the agent has ended the workers.
        SUCCEEDED, FAILED: the workers have exited on their own.
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
        """Return whether the group's processes exist."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


@dataclass(frozen=True)
class RunResult:
    """The result of this node's workers: all succeeded, or at least one failed.

    `return_values` contains the return values of the workers' functions, and `failures` the workers' failures, both by
    global rank. Workers that the agent stopped are in neither mapping."""

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether the job failed on this node."""
        return self.state is WorkerState.FAILED


@dataclass
class WorkerSpec:
    """The specification of one node's workers. The names, order and defaults of the fields are torch's.

    Args:
        role: the workers' role; they also have ranks within their role.
        local_world_size: the number of workers, at least 1.
        rdzv_handler: the handler through which this node joins the other nodes.
        fn: another name for `entrypoint`, deprecated in torch.
        entrypoint: the command or function to run.
        args: the arguments of the command or function.
        max_restarts: how many failures of the group lead to a restart; the next failure is final.
        monitor_interval: seconds (0 or more) between checks of the workers, for an agent that is not notified when a
            worker ends.
        master_port, master_addr: the values for the workers, instead of those from the rendezvous.
        local_addr: not used here; the handler gets it from its `RendezvousParameters`.

    Only `LocalElasticAgent` uses the following:

    Args:
        event_log_handler: the destination of events; see `elastic_core.events`.
        numa_options: torch's `NumaOptions`, or a value of `--numa-binding`.
        duplicate_stdout_filters, duplicate_stderr_filters: lines that contain any of these strings are also copied to
            one file for all workers.
        virtual_local_rank: whether each worker sees only one device and has LOCAL_RANK 0.

    Raises:
        ValueError: an argument is out of bounds.
    """

    role: str
    local_world_size: int
    rdzv_handler: RendezvousHandler
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: Duration = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        self.entrypoint = self.fn or self.entrypoint
        if self.local_world_size < 1:
            raise ValueError(f"expected at least one worker on the node, found {self.local_world_size}")
        if self.max_restarts < 0:
            raise ValueError(f"expected max_restarts of 0 or more, found {self.max_restarts}")
        if self.monitor_interval < 0:
            raise ValueError(f"expected a monitor_interval of 0 s or more, found {self.monitor_interval}")

    def get_entrypoint_name(self) -> str:
        """Return the entry point's name for messages: a function's qualified name, or the command."""
        if callable(self.entrypoint):
            return getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))
        return self.entrypoint or "<none>"


@dataclass(eq=False)
class Worker:
    """One worker. Workers are compared by identity. Ranks are -1 until the worker's node has joined a round. Only the
    agent uses `id`, which is a process id for the local agent."""

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    id: Any = None


class WorkerGroup:
    """The workers of one node, which are all replaced in every round. Only the owning agent may change it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.state = WorkerState.INIT
        self.round = 0
        self.store: Store | None = None
        self.group_rank = -1
        self.group_world_size = -1
        self.master_addr = ""
        self.master_port = -1


class ElasticAgent(abc.ABC):
    """Runs the workers of one node until they succeed or fail for good."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run until the workers have succeeded or failed for good. The run also succeeds if the node was not needed.

        Raises:
            SignalException: a signal asked the agent to leave, and the agent has stopped its workers.
            RendezvousClosedError: another node closed the job because the job failed there. `failures` contains the
                job's failures.
            RendezvousConnectionError: the store was unreachable until the node's time limit for joining expired.
            RendezvousError: no round formed.
            UnkillableWorkersError: a worker survived SIGKILL.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the group. The caller must not change it."""

"""The agent's interface for programs that run one or write their own: its specification, its workers, its result."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.store import Store

DEFAULT_ROLE = "default"


class WorkerState(str, enum.Enum):
    """The state of a worker group, which all its workers share. The names are torch's.

    UNKNOWN: the agent has lost track; INIT: starting; HEALTHY: running; UNHEALTHY: running, but the group has failed;
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
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


@dataclass(frozen=True)
class RunResult:
    """The result of the workers of this node: all succeeded, or at least one failed. Keys are global ranks.

    `return_values` are those of functions. `failures` holds the workers that failed; workers that the agent stopped are
    in neither.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether the job failed on this node."""
        return self.state is WorkerState.FAILED


@dataclass
class WorkerSpec:
    """The workers of one node. Names, order and defaults of the fields are torch's.

    Args:
        role: their role; workers also have ranks within their role.
        local_world_size: how many, at least 1.
        rdzv_handler: joins the other nodes.
        fn: another name of `entrypoint`, which torch has deprecated.
        entrypoint: a command or a function.
        args: its arguments.
        max_restarts: failures of the group that are forgiven.
        monitor_interval: seconds between two checks of the workers, for an agent that is not notified; 0 or more.
        master_port, master_addr: for the workers, in place of the rendezvous's.
        local_addr: not used here; the handler gets it from its `RendezvousParameters`.

    The rest is used by `LocalElasticAgent` only:

    Args:
        event_log_handler: the destination of events, see `elastic_core.events`.
        numa_options: torch's `NumaOptions`, or a value of `--numa-binding`.
        duplicate_stdout_filters, duplicate_stderr_filters: lines with one of these texts are also written to one file.
        virtual_local_rank: every worker sees one device only, and has LOCAL_RANK 0.

    Raises:
        ValueError: a bound does not hold.
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
        """The entry point for messages: a function's qualified name, or the command."""
        if callable(self.entrypoint):
            return getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))
        return self.entrypoint or "<none>"


@dataclass(eq=False)
class Worker:
    """One worker, compared by identity. `id` is for the agent only (a process id for the local agent). Ranks are -1
    before a round."""

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    id: Any = None


class WorkerGroup:
    """The workers of one node; every round replaces all of them. Only the agent that owns the group changes it."""

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
    """Runs the workers of one node to their end."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run until the workers have succeeded, or failed for good. A node that was not needed has succeeded too.

        Raises:
            SignalException: a signal asked the agent to leave, and it has stopped its workers.
            RendezvousClosedError: another node closed the job, because it failed there; `failures` are the job's.
            RendezvousConnectionError: the store was unreachable for as long as the node may take to join.
            RendezvousError: no round formed.
            UnkillableWorkersError: a worker survived SIGKILL.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """The group; for reading only."""

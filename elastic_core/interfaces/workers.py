"""The agent's interfaces to its workers, the starters that start them, and the watchdogs that detect hung workers."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from elastic_core.clock import Instant
    from elastic_core.errors import ProcessFailure


@dataclass(frozen=True)
class WorkerRanks:
    """One worker's ranks: on its node, in the job, and among the workers of its role."""

    local: int
    world: int
    role: int


@dataclass(frozen=True)
class RoundPlan:
    """Everything that this node's workers need to know about their round. `node` is this node's display name."""

    round: int
    run_id: str
    node: str
    role: str
    group_rank: int
    group_world_size: int
    world_size: int
    role_world_size: int
    master_addr: str
    master_port: int
    use_agent_store: bool
    restart_count: int
    max_restarts: int
    ranks: tuple[WorkerRanks, ...]
    contributed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerExit:
    """A worker's process has ended. `exitcode` is negative if a signal ended it. `obeyed` is True if the agent
    had asked the worker to end."""

    local_rank: int
    pid: int
    exitcode: int
    obeyed: bool = False


@dataclass(frozen=True)
class WorkerSample:
    """A running worker's progress so far. Values that are not watched stay 0.

    Args:
        written: the number of bytes of output.
        cpu: the CPU seconds of all the worker's processes. The value may decrease when one of them ends.
        beats: a number that changes with every heartbeat of the worker.
        held_up: whether the console is blocking the worker's output, so that missing output does not mean a hang.
    """

    local_rank: int
    pid: int
    written: int = 0
    cpu: float = 0.0
    beats: int = 0
    held_up: bool = False


@dataclass(frozen=True)
class Leftover:
    """A remaining process, either a worker or a process that a worker started. `state` is the kernel's one-letter
    process state. `waits_in` is the kernel function in which the process sleeps, or an empty string if unknown."""

    pid: int
    state: str
    command: str
    waits_in: str = ""


@dataclass(frozen=True)
class Work:
    """What every worker of the node runs: either a command line or a function with its arguments."""

    command: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One worker that is about to start.

    Args:
        environment: the worker's complete environment; it inherits no other variables.
        stdout, stderr: the descriptors for the worker's output; None if the worker inherits the agent's descriptor.
        result: the file for a function's return value, in a folder that is private to the agent.
        mark: a descriptor that the worker must keep open for as long as it runs. If the agent is killed, the guardian
            uses it to find the worker.
        cpus: the CPUs that the worker may run on; if empty, it may run on any.
    """

    local_rank: int
    environment: dict[str, str]
    stdout: int | None
    stderr: int | None
    result: Path
    mark: int
    cpus: frozenset[int] = frozenset()


class Child(Protocol):
    """A process that a starter has started."""

    pid: int

    def poll(self) -> int | None:
        """Reap the child if it has ended. Returns its exit code (negative if a signal ended it), or None while it is
        running."""

    def own_sentinel(self) -> int | None:
        """Return a new descriptor that becomes readable when the child ends, or None if the agent can watch the child's
        process id instead."""


class Starter(Protocol):
    """Starts workers, one at a time, in one thread.

    A starter may have a `prepare` method. It is called before a round's workers are started, with the environment of
    the first worker (without the paths of the files that it will use) and the CPUs to which that worker will be bound.
    It may block for a limited time. A signal to the agent ends this wait, but the method then continues in its thread.

    A starter may also have a `close` method, which must release the starter's resources within bounded time. It is
    called after all workers have ended, possibly twice."""

    def start(self, launch: Launch) -> Child:
        """Start one worker in a new session (`setsid`), with default signal handlers. The worker must keep only those
        of the agent's file descriptors that are listed in `launch`.

        Raises:
            ConfigurationError: this starter cannot run the work.
        """

    def result(self, launch: Launch) -> object:
        """Return the value that a worker returned before it ended with exit code 0, or None if workers do not return
        values. If this raises an error although the file `launch.result` exists, the worker has failed."""


class WorkerProcesses(Protocol):
    """The processes of one node's workers, round after round. Only one thread calls the methods."""

    def preparation(self, plan: RoundPlan) -> Callable[[], object] | None:
        """Return what to call before `start`, in any thread, because it may block. None if there is nothing to
        prepare."""

    def start(self, plan: RoundPlan) -> dict[int, int]:
        """Start a worker for each of the plan's ranks. If one of them cannot be started, no worker is left running.
        Returns the process ids by local rank."""

    def sentinels(self) -> Collection[int]:
        """Return file descriptors. One becomes readable when a worker has ended or `reap` has other work to do."""

    def reap(self) -> list[WorkerExit]:
        """Return the exits since the last call, in their most likely order. Does not block."""

    def running(self) -> list[int]:
        """Return the local ranks of the workers that have not ended."""

    def ask_to_stop(self, until: Instant, reason: str) -> None:
        """Ask the workers to stop. From then on, `elastic_core.should_stop` blocks in the workers until `stop_at` is
        called, but not beyond `until`. A second call only changes `until`."""

    def announced_step(self) -> int:
        """Return the highest step that any worker of the round has passed to `should_stop`, or -1 if no worker has
        called it."""

    def stop_at(self, step: int | None) -> None:
        """Make `should_stop` return true from this step on, or false if `step` is None."""

    def saved(self) -> list[int]:
        """Return the local ranks of the workers that have called `elastic_core.stopped`."""

    def ask(self, signum: int) -> None:
        """Ask the workers to end. The signal is sent to the main process of each running worker, and to all processes
        that ended workers have left behind. No process gets the same signal twice."""

    def send_signal(self, signum: int) -> None:
        """Send the signal to all processes of this round's workers."""

    def kill_workers(self) -> None:
        """Send SIGKILL to all processes of this round's workers except helpers. A helper is a process that a worker
        started and that ignores or blocks both SIGINT and SIGTERM, such as multiprocessing's resource tracker. The
        tracker removes the shared memory of the processes that it serves, and exits on its own after they have
        ended."""

    def samples(self) -> list[WorkerSample]:
        """Return one sample for each running worker."""

    def kill(self, pid: int, reason: str, ask: bool = True) -> int | None:
        """Kill a hung worker, and record its failure with `reason`. SIGKILL is sent to the worker and to the processes
        that it started, except helpers (see `kill_workers`). The worker may survive for a moment, or forever if it
        hangs in the kernel.

        Args:
            pid: the worker's process id, or that of another process in its session.
            ask: whether to record the worker's stacks first. Recording takes up to about half a second, or up to two
                seconds more if another program must read the stacks. If false, the call does not block.

        Returns the worker's local rank, or None if this round has no such process or the worker has already been
        killed."""

    def leftovers(self) -> list[Leftover]:
        """Return this round's remaining processes, including descendants of ended workers."""

    def leftover_sentinels(self) -> Collection[int]:
        """Return descriptors, one of which becomes readable when a leftover process ends. The result is empty if the
        platform cannot provide such descriptors."""

    def drain(self) -> int | None:
        """Read the rest of the round's output after all its processes have ended. Returns a descriptor that becomes
        readable when all output is delivered, or None if there is nothing to wait for. Idempotent."""

    def delivered(self) -> int:
        """Return a count that grows while output is being delivered. The count distinguishes a slow console from a
        stalled one."""

    def finish(self) -> None:
        """Release the round's resources. Output that has not been delivered is dropped, and the loss is logged."""

    def failures(self) -> dict[int, ProcessFailure]:
        """Return the failed workers of the latest round, by global rank. `finish` completes the result, because their
        last lines may be missing before it, and it reads the return values."""

    def return_values(self) -> dict[int, Any]:
        """Return the functions' return values by global rank. The value for a script is None. Call this method after
        `finish`."""

    def close(self) -> None:
        """End helper processes and remove temporary files. No worker may be running. Idempotent."""


@dataclass(frozen=True)
class Expiry:
    """A hung worker, as a watchdog reports it.

    Args:
        worker_pid: the id of the worker's process or of another process in its session.
        scope: the timer's scope, which names the operation that the worker was about to perform.
        reason: how the hang was detected, as text that follows "hang: " in messages; empty for an expired timer.
        late: how many seconds have passed since the worker should have made progress, if known.
    """

    worker_pid: int
    scope: str
    reason: str = ""
    late: float = 0.0


@dataclass(frozen=True)
class WatchedWorker:
    """A worker of this node.

    Args:
        local_rank: its rank on this node.
        global_rank: its rank in the job, which is part of the log files' names.
        pid: its process id, which is also the id of its session. Processes that it starts share the session.
        logs: the files that contain its output, stdout before stderr; empty unless `-r` or `-t` is set.
    """

    local_rank: int
    global_rank: int
    pid: int
    logs: tuple[Path, ...] = ()


class Watchdog(abc.ABC):
    """Detects hung workers. The agent creates a watchdog before the first worker starts, and stops it after all workers
    have ended.

    A watchdog need not track which workers are still running, because the agent ignores reports about workers that have
    ended.
    """

    @abc.abstractmethod
    def start(self, on_expiry: Callable[[Expiry], None]) -> None:
        """Start watching. Any thread may call `on_expiry`, which does not block."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop watching and release all resources. Idempotent. Must return within bounded time."""

    @abc.abstractmethod
    def worker_environment(self) -> Mapping[str, str]:
        """Return the environment variables through which workers find this watchdog. Called before every round."""

    def round_started(self, workers: Sequence[WatchedWorker]) -> None:  # noqa: B027 - timers need not know
        """Handle a new round after its workers have started. All workers of earlier rounds have ended. The agent's
        thread calls this method once per round, after `start`. The method must not block, and an exception is only
        logged (`plugin failed`). A watchdog based on timers need not override the method, because it learns about
        workers from their requests.

        Args:
            workers: this node's workers, in the order of their local ranks.
        """

    def fault(self) -> str:
        """Return why the started watchdog is not working, or an empty string if it is working. Any thread may call this
        method, which must not block."""
        return ""

    def scratch(self) -> Sequence[str]:
        """Return the absolute paths of private folders that `stop` removes. If the agent is killed, the guardian
        removes these folders with their contents. Called once, after `start`."""
        return ()

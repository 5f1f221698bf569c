"""What the agent knows of the workers: it gives them the plan of a round, and gets process ids and exits. And what a
starter is, which starts them one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from elastic_core.errors import ProcessFailure


@dataclass(frozen=True)
class WorkerRanks:
    """The ranks of one worker: on its node, in the job, among the workers of its role."""

    local: int
    world: int
    role: int


@dataclass(frozen=True)
class RoundPlan:
    """Everything that the workers of this node need to know about their round. Rounds are numbered from 1; `node` is
    this node's name for people."""

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

    def with_contributed(self, variables: Mapping[str, str]) -> RoundPlan:
        """The same plan with more variables for the workers."""
        return replace(self, contributed={**self.contributed, **variables})


@dataclass(frozen=True)
class WorkerExit:
    """A worker's process has ended; `exitcode` is negative for a signal."""

    local_rank: int
    pid: int
    exitcode: int


@dataclass(frozen=True)
class WorkerSample:
    """What a running worker has done so far; a source that is not watched stays 0.

    Args:
        written: bytes of output.
        cpu: seconds of CPU time of all its processes. May shrink when one of them ends.
        beats: a count that changes with every beat.
        held_up: its output waits for the console, so silence does not show that it hangs.
    """

    local_rank: int
    pid: int
    written: int = 0
    cpu: float = 0.0
    beats: int = 0
    held_up: bool = False


@dataclass(frozen=True)
class Leftover:
    """A process that has not ended: a worker, or a process that a worker started. `state` is the kernel's letter,
    `waits_in` the kernel function in which it sleeps (empty if unknown)."""

    pid: int
    state: str
    command: str
    waits_in: str = ""


@dataclass(frozen=True)
class Work:
    """What every worker of the node runs: a command line, or else a function with its arguments."""

    command: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One worker about to start.

    Args:
        environment: all of its variables; it inherits none.
        stdout, stderr: the descriptors to write to; None: the agent's own.
        result: the path where a function's return value goes. The folder is private to the agent.
        mark: a descriptor that the worker has to hold from its first moment to its end, by which it is found if the
            agent is killed meanwhile.
        cpus: the processors to run on; empty: any.
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
        """Reap the child if it has ended: its exit code, negative for a signal; None while it runs."""
        ...

    def own_sentinel(self) -> int | None:
        """A new file descriptor that becomes readable when `poll` has an answer; None if its process id will do."""
        ...


class Starter(Protocol):
    """Starts workers, one at a time, from one thread. If it has a `close`, that is called at the end, once no worker
    runs; it ends what the starter keeps, within a bound."""

    def start(self, launch: Launch) -> Child:
        """Start one worker in a session of its own (`setsid`), with the default handlers of signals. It holds the
        agent's descriptors no longer than the call, but those of `launch`.

        Raises:
            ConfigurationError: the work cannot be run at all.
        """
        ...

    def result(self, launch: Launch) -> object:
        """What the worker returned, after it has ended with exit code 0; None where that has no meaning."""
        ...


class WorkerProcesses(Protocol):
    """The processes of one node's workers, one round after another. Used from one thread."""

    def start(self, plan: RoundPlan) -> dict[int, int]:
        """Start a worker for each of the plan's ranks, all or none. Returns the process ids by local rank."""

    def sentinels(self) -> Collection[int]:
        """File descriptors; one of them polls as ready when a running worker has ended, or `reap` has other work."""

    def reap(self) -> list[WorkerExit]:
        """The exits since the last call, in the order in which they probably happened. Does not block."""

    def running(self) -> list[int]:
        """Local ranks of the workers that have not ended."""

    def ask(self, signum: int) -> None:
        """Ask the workers to end: send the signal to the first process of each running worker, and to all processes
        that ended workers have left behind. None gets the same signal twice."""

    def send_signal(self, signum: int) -> None:
        """Send the signal to all processes of this round's workers."""

    def kill_workers(self) -> None:
        """Send SIGKILL to all processes of this round's workers but helpers: what a worker has started and what ignores
        or blocks both SIGINT and SIGTERM, such as the resource tracker of multiprocessing. It ends by itself once those
        have ended that it serves, and removes the shared memory that they have left."""

    def samples(self) -> list[WorkerSample]:
        """One sample for each running worker."""

    def kill(self, pid: int, reason: str, ask: bool = True) -> int | None:
        """Kill a worker that hangs, with every process it started but helpers (see `kill_workers`), by SIGKILL, and
        record its failure with `reason`. The worker may run on for a moment, or for ever if it hangs in the kernel.

        Args:
            pid: the worker's process, or a process that it started in its own session.
            ask: record the worker's stacks before. That takes up to about half a second, or two more if another
                program has to read them. If false, the call does not block.

        Returns the worker's local rank. Returns None, and does nothing, if there is no such process in this round, or
        the worker was killed already."""

    def leftovers(self) -> list[Leftover]:
        """Processes of this round that still exist, including descendants of ended workers."""

    def leftover_sentinels(self) -> Collection[int]:
        """File descriptors; one of them becomes readable when a leftover has ended. Empty where unsupported."""

    def drain(self) -> int | None:
        """Read the rest of the round's output, when none of its processes is left. Returns a descriptor that becomes
        readable when all output is delivered; None if there is nothing to wait for. Idempotent."""

    def delivered(self) -> int:
        """A count that grows while output is being delivered; it distinguishes a slow console from a stalled one."""

    def finish(self) -> None:
        """Release what the round held. Output that is not delivered yet is dropped, with a log line about it."""

    def failures(self) -> dict[int, ProcessFailure]:
        """The workers of the latest round that have failed, by global rank. Before `finish`, their last lines may be
        missing."""

    def return_values(self) -> dict[int, Any]:
        """After `finish`: the return values of functions, by global rank (None for scripts)."""

    def close(self) -> None:
        """End helper processes and remove temporary files. No worker may be running. Idempotent."""

"""What the agent knows of the workers: a round's plan goes in, process ids and exits come out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from elastic_core.errors import ProcessFailure


@dataclass(frozen=True)
class WorkerRanks:
    """The ranks of one worker: on its node, in the job, among the workers of its role."""

    local: int
    world: int
    role: int


@dataclass(frozen=True)
class RoundPlan:
    """All that the workers of this node need to know of their round. Numbers of rounds start
    at 1; `node` is this node's name for people."""

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
    """What a running worker has done so far; what was not asked for stays 0.

    Args:
        written: bytes of output.
        cpu: seconds of CPU time, of all its processes. May shrink when one of them ends.
        beats: a count that changes when it has beaten.
        held_up: nobody can tell whether it works, because its output waits for the console.
    """

    local_rank: int
    pid: int
    written: int = 0
    cpu: float = 0.0
    beats: int = 0
    held_up: bool = False


@dataclass(frozen=True)
class Leftover:
    """A process that has not ended: a worker or something a worker started. `state` is the kernel's letter,
    `waits_in` the kernel function it sleeps in (empty where unknown)."""

    pid: int
    state: str
    command: str
    waits_in: str = ""


class WorkerProcesses(Protocol):
    """The processes of one node's workers, one round after another. Used from one thread."""

    def start(self, plan: RoundPlan) -> dict[int, int]:
        """Start a worker for each of the plan's ranks; local rank -> process id. All or none."""
        ...

    def sentinels(self) -> Collection[int]:
        """File descriptors of which one becomes readable when a running worker has ended."""
        ...

    def reap(self) -> list[WorkerExit]:
        """The exits since the last call, in the order they are held to have happened. Does not block."""
        ...

    def running(self) -> list[int]:
        """Local ranks of the workers that have not ended."""
        ...

    def send_signal(self, signum: int) -> None:
        """Signal everything the workers of this round consist of."""
        ...

    def samples(self) -> list[WorkerSample]:
        """What the running workers have done so far, if that is watched."""
        ...

    def kill(self, pid: int, reason: str, ask: bool = True) -> int | None:
        """A worker hangs: note its stacks, as far as they can be had within about half a second (or two more, if
        another program has to be asked), then SIGKILL it and what it started, and give `reason` as the reason of its
        failure, which is there from now on. Without `ask` nobody is asked for stacks, and it does not block: the worker
        may still run for a moment, or for ever if it hangs in the kernel.

        `pid`: its process, or one that it started and that is of its session. Returns its local rank; None, and
        nothing happens, if there is no such process in this round, or its worker was killed already."""
        ...

    def leftovers(self) -> list[Leftover]:
        """Processes of this round that still exist, descendants of ended workers included."""
        ...

    def leftover_sentinels(self) -> Collection[int]:
        """File descriptors of which one becomes readable when a leftover has ended; empty where unsupported."""
        ...

    def drain(self) -> int | None:
        """No process of the round is left: read the rest of its output. A descriptor that becomes readable when all of
        it is delivered; None when there is nothing to wait for. Idempotent."""
        ...

    def delivered(self) -> int:
        """A count that grows for as long as output is being delivered: tells a slow console from a stalled one."""
        ...

    def finish(self) -> None:
        """Release what the round held. Output that is not delivered by now is given up, with a line that says so."""
        ...

    def failures_so_far(self) -> dict[int, ProcessFailure]:
        """While the round runs: the workers that have failed, by global rank. Their last lines may be missing yet."""
        ...

    def failures(self) -> dict[int, ProcessFailure]:
        """After `finish`: the workers of the round that failed, by global rank."""
        ...

    def return_values(self) -> dict[int, Any]:
        """After `finish`: what the functions returned, by global rank (None for scripts)."""
        ...

    def close(self) -> None:
        """End helpers and temporary files. No worker may be running. Idempotent."""
        ...

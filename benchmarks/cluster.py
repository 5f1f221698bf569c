"""Several agents of one job on this machine, each acting as a node, and the training steps of their workers."""

from __future__ import annotations

import json
import socket
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from elastic_testing.machines import Machine

from benchmarks.job import WORKERS, BenchmarkError, Job
from benchmarks.processes import end_descendants, now, start_time, wait_gone

LOOK_EVERY_S = 0.05  # Does not affect the figures, because steps carry their own times.
STOP_TOGETHER_S = 3.0


@dataclass(frozen=True)
class Step:
    """An optimizer step, as `workers/steps.py` writes it. `group` is the store through which the workers found each
    other."""

    at: float
    node: int
    pid: int
    rank: int
    world_size: int
    restart: int
    local_rank: int = 0
    group: str = ""


class StepFile:
    """A file to which workers append their steps, read incrementally."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def more(self) -> list[Step]:
        """The steps since the last call. An incomplete line is left for the next call."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            return [Step(**json.loads(line)) for line in whole.splitlines()]
        return []


@dataclass(frozen=True)
class Resumed:
    """A world that trains again: the time of its slowest rank's first step, and the start time of its last process."""

    at: float
    started: float


def resumed(steps: Sequence[Step], world_size: int, count: int) -> tuple[float, set[int]] | None:
    """The time of the slowest rank's first step in a world that trains again, and the world's processes. None until the
    latest process of every rank has made `count` steps, and if these processes did not all train at the same time.
    Restart counts are no criterion: torchrun counts on each node only the restarts that this node's workers caused."""
    by_rank: dict[int, list[float]] = {}
    pids: dict[int, int] = {}
    for step in sorted(steps, key=lambda step: step.at):
        if pids.get(step.rank) != step.pid:
            pids[step.rank], by_rank[step.rank] = step.pid, []
        by_rank[step.rank].append(step.at)
    times = [by_rank.get(rank, []) for rank in range(world_size)]
    if any(len(of_rank) < count for of_rank in times):
        return None
    first = max(of_rank[0] for of_rank in times)
    if first > min(of_rank[count - 1] for of_rank in times):
        return None
    return first, {pids[rank] for rank in range(world_size)}


@dataclass(frozen=True)
class Meeting:
    """A job's endpoint: the rendezvous backend, and the port of its store on these hosts."""

    backend: str
    port: int
    hosts: tuple[str, ...] = ("127.0.0.1",)


@dataclass(frozen=True)
class Shape:
    """The workers of a job.

    Args:
        workers: number of workers per node.
        restarts: number of restarts allowed.
        script: a script of `workers/` that records its steps.
        options: more options of the launcher.
    """

    workers: int = 1
    restarts: int = 3
    script: str = "ddp.py"
    options: tuple[str, ...] = ()


class Cluster:
    """A job whose nodes are started one by one (see `cluster`). Node 0 hosts the rendezvous store, unless a separate
    store exists. A job of one node needs no endpoint. All nodes share this machine unless `machines` are given."""

    def __init__(
        self,
        launcher: Sequence[str],
        nodes: str,
        folder: Path,
        meeting: Meeting | None = None,
        shape: Shape = Shape(),
        machines: Sequence[Machine] = (),
    ) -> None:
        self.folder = folder
        self.agents: list[Job] = []
        self.machines = machines
        meeting = meeting or Meeting("c10d", free_port())
        self._port = meeting.port
        self._workers = shape.workers
        self._file = StepFile(folder / "steps")
        self._last: dict[int, Step] = {}
        self._command = [
            *launcher,
            f"--nproc-per-node={shape.workers}",
            f"--max-restarts={shape.restarts}",
            *(["--standalone"] if nodes == "1" else meet(meeting, nodes)),
            *shape.options,
            str(WORKERS / shape.script),
        ]

    def start_node(self, machine: int | None = None, **extra: str) -> Job:
        """Start another agent, on the given machine if any, with extra environment variables."""
        extra |= {"BENCHMARK_STEPS": str(self._file.path), "BENCHMARK_NODE": str(len(self.agents))}
        through: list[str] = []
        if machine is not None:
            through = self.machines[machine].through
            extra |= self.machines[machine].environment
        self.agents.append(Job([*through, *self._command], self.folder, extra))
        return self.agents[-1]

    def wait_host(self, deadline: float) -> None:
        """Wait until a process listens on the rendezvous port."""
        while not listens(self._port):
            if self.agents[0].process.poll() is not None or now() > deadline:
                raise BenchmarkError(f"no agent hosts the rendezvous store.\n{self.tail()}")
            time.sleep(LOOK_EVERY_S)

    def _more(self) -> list[Step]:
        steps = self._file.more()
        self._last.update({step.node * self._workers + step.local_rank: step for step in steps})
        return steps

    def steps(self) -> list[Step]:
        """All steps so far."""
        return StepFile(self._file.path).more()

    def wait_resumed(
        self, world_size: int, old: Collection[int], count: int, deadline: float, since: float = 0.0
    ) -> Resumed | None:
        """Wait until every rank of a new world of this size has made `count` steps since `since`. Returns None if
        the deadline passes or all agents exit first."""
        fresh: list[Step] = []
        while True:
            more = [step for step in self._more() if step.at > since and step.world_size == world_size]
            fresh += [step for step in more if step.pid not in old]
            if (back := resumed(fresh, world_size, count)) is not None:
                return Resumed(back[0], max(start_time(pid) for pid in back[1]))
            if now() > deadline or all(agent.process.poll() is not None for agent in self.agents):
                return None
            time.sleep(LOOK_EVERY_S)

    def workers(self) -> dict[int, int]:
        """The process that made the last step in each place (the node, if each has one worker)."""
        self._more()
        return {place: step.pid for place, step in self._last.items()}

    def trains(self, pids: Collection[int], within_s: float) -> bool:
        """Whether at least one of these processes runs, and all that run have made a step within `within_s`."""
        self._more()
        last = [step.at for step in self._last.values() if step.pid in pids and psutil.pid_exists(step.pid)]
        return bool(last) and min(last) > now() - within_s

    def tail(self) -> str:
        """The last lines of output of each agent."""
        lines = []
        for node, agent in enumerate(self.agents):
            lines += [f"-- node {node}, exit code {agent.process.poll()}\n", *agent.output[-25:]]
        return "".join(lines)

    def stop(self) -> None:
        """Ask all agents to leave, and kill those that do not exit soon."""
        for agent in self.agents:
            agent.process.terminate()
        wait_gone([agent.pid for agent in self.agents], STOP_TOGETHER_S)
        end_descendants()
        for agent in self.agents:
            agent.process.wait()
            agent.wait_output_end()


def meet(meeting: Meeting, nodes: str) -> list[str]:
    """Launcher options for a new job."""
    return [
        f"--nnodes={nodes}",
        f"--rdzv-backend={meeting.backend}",
        "--rdzv-endpoint=" + ",".join(f"{host}:{meeting.port}" for host in meeting.hosts),
        f"--rdzv-id={uuid.uuid4().hex[:12]}",
    ]


@contextmanager
def cluster(
    launcher: Sequence[str],
    nodes: str,
    meeting: Meeting | None = None,
    shape: Shape = Shape(),
    machines: Sequence[Machine] = (),
) -> Iterator[Cluster]:
    """Create a job without agents. At the end of the block, all its processes are stopped. `nodes` is MIN:MAX or a
    number."""
    with tempfile.TemporaryDirectory(prefix="elastic-benchmark-") as folder:
        made = Cluster(launcher, nodes, Path(folder), meeting, shape, machines)
        try:
            yield made
        finally:
            made.stop()


def free_port() -> int:
    """Return a port that was free a moment ago. Torchrun needs a number, so the port cannot be reserved."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether a process of this machine listens on the port, without connecting to it."""
    found = psutil.net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port for one in found)

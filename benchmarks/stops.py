"""Do all workers save the same step when a job, or one of its nodes, is asked to stop? What does `should_stop` cost?

The job has two nodes with two workers each, whose steps take 1 to 50 ms, at random and independently of each other.

- *leaves*: one agent gets SIGTERM at a random moment. All four workers should save the same step. Then a new agent
  replaces it. The two workers that train alone in the meantime should also save the same step.
- *all*: all agents get SIGTERM at the same time. torchrun runs the usual recipe, a SIGTERM handler whose flag the loop
  checks in every step. Its other nodes would not learn of a signal to one agent.
- *notices*: a file announces that one node must leave now (the source `file` of elastic-notices). The time runs from
  the file's creation until the other node trains alone. After every fifth notice, a notice for later is withdrawn,
  which must not disturb the training.
- *cost*: nanoseconds of one call of `should_stop` before a stop is requested, and the steps per second of a small
  training on one thread, with the call and without it in turn.
- *agents*: the time until the last of many agents, in eight processes, knows the step agreed on over TCPStore.

A stop counts as *whole* if all workers of the round have saved the same step before their deadline.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.cluster import Cluster, Meeting, Shape, StepFile, cluster, free_port
from benchmarks.etcd_recovery import etcd
from benchmarks.job import WORKERS, BenchmarkError, Job, launchers
from benchmarks.processes import now
from benchmarks.report import Report, Row, main, parser
from elastic_core.stop import STOP_FILE, StopFile

LIMIT_S = 60.0
LOOK_EVERY_S = 0.02
PROCESSES = 8
CALL = """
import timeit
print(min(timeit.repeat('f(7)', 'from elastic_core import should_stop as f', number=10**6)) * 1e3)
"""

TRAINING = """
import statistics, time, torch
from elastic_core import should_stop
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer, batch, number = torch.optim.SGD(model.parameters(), 0.01), torch.randn(32, 64), 0
def step():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
def rate(asks, steps=500):
    global number
    begun = time.perf_counter()
    for number in range(number, number + steps):
        if asks and should_stop(number):
            raise SystemExit("should_stop is true, although no stop was requested")
        step()
    return steps / (time.perf_counter() - begun)
rate(True)
pairs = [(rate(True), rate(False)) for _ in range(40)]
print(*(statistics.median(one) for one in zip(*pairs)))
"""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--backends", default="c10d,etcd", help="over which the nodes meet (c10d,etcd)")
    made.add_argument("--cycles", type=int, default=250, help="nodes that leave and return, for each backend (250)")
    made.add_argument("--stops", type=int, default=10, help="stops of the whole job, for each launcher (10)")
    made.add_argument("--notices", type=int, default=100, help="notices that take effect (100)")
    made.add_argument("--agents", default="256,1024", help="numbers of agents that agree (256,1024)")
    made.add_argument("--seed", type=int, default=1, help="seed of the pauses before a stop (1)")
    made.add_argument("--loader", action="store_true", help="feed the workers by DataLoaders with two processes each")
    return made


@dataclass(frozen=True)
class Stop:
    """How one round of workers ended.

    Args:
        world: the number of workers.
        saved: how many of them have saved.
        steps: the steps that they have saved.
        late: whether a worker saved after its deadline.
    """

    world: int
    saved: int
    steps: tuple[int, ...]
    late: bool

    @property
    def whole(self) -> bool:
        return self.saved == self.world and len(self.steps) == 1 and not self.late


class Saves:
    """What the workers of a job have saved."""

    def __init__(self, job: Cluster) -> None:
        self._path = job.folder / "steps.saves"
        self._read = 0

    def next(self, world: int) -> Stop:
        """Return the stop of the last round, of so many workers, which have all exited."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        fresh, self._read = [json.loads(line) for line in lines[self._read :]], len(lines)
        late = any(line["left"] is not None and line["left"] <= 0 for line in fresh)
        return Stop(world, len(fresh), tuple(sorted({line["step"] for line in fresh})), late)


@contextlib.contextmanager
def meeting_over(backend: str) -> Iterator[Meeting]:
    """A store of this backend."""
    if backend == "etcd":
        with etcd() as meeting:
            yield meeting
    else:
        yield Meeting(backend, free_port())


class Training:
    """Which worlds of a job have trained."""

    def __init__(self, job: Cluster) -> None:
        self._job = job
        self._file = StepFile(job.folder / "steps")
        self._last = ""

    def wait(self, world: int) -> None:
        """Wait until all ranks of a world of this size, which is not the last one, have made a step."""
        ranks: dict[str, set[int]] = collections.defaultdict(set)
        deadline = now() + LIMIT_S
        while True:
            for step in self._file.more():
                if step.world_size == world and step.group != self._last:
                    ranks[step.group].add(step.rank)
            if whole := [group for group, of_one in ranks.items() if len(of_one) == world]:
                self._last = whole[-1]
                return
            if now() > deadline:
                raise BenchmarkError(f"no world of {world} trains.\n{self._job.tail()}")
            time.sleep(LOOK_EVERY_S)

    def continues(self) -> bool:
        """Wait for a step, and return whether the last world has made it."""
        deadline = now() + LIMIT_S
        while not (steps := self._file.more()):
            if now() > deadline:
                raise BenchmarkError(f"no world trains.\n{self._job.tail()}")
            time.sleep(LOOK_EVERY_S)
        return steps[-1].group == self._last


@dataclass
class Notices:
    """What notices have caused: the stops, the seconds from each notice until the other node trained alone, and for
    each withdrawn notice, whether the training was not disturbed."""

    stops: list[Stop] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    undisturbed: list[bool] = field(default_factory=list)


def noticing(command: Sequence[str], arguments: argparse.Namespace) -> Notices:
    """Let nodes leave because of notices, and return."""
    moments, found = random.Random(arguments.seed), Notices()
    meeting = Meeting("c10d", free_port())
    with cluster(command, "1:2", meeting, Shape(2, 0, "stopping.py")) as job:

        def start(number: int) -> tuple[Job, Path]:
            file = job.folder / f"notice-{number}"
            return job.start_node(ELASTIC_NOTICES="file", ELASTIC_NOTICE_FILE=str(file)), file

        nodes, training, saves = [start(0), start(1)], Training(job), Saves(job)
        training.wait(4)
        saves.next(2)  # of a node that began alone
        for number in range(arguments.notices):
            time.sleep(moments.uniform(0, 0.2))
            agent, file = nodes.pop(moments.randrange(2))
            if number % 5 == 0:
                found.undisturbed.append(withdrawn(agent, file, training, job))
            begun = now()
            file.touch()
            training.wait(2)
            found.seconds.append(now() - begun)
            ended(agent, job)
            found.stops.append(saves.next(4))
            nodes.append(start(number + 2))
            training.wait(4)
            found.stops.append(saves.next(2))
    return found


def withdrawn(agent: Job, file: Path, training: Training, job: Cluster) -> bool:
    """Announce that a node must leave in an hour, and withdraw the notice. Returns whether the training continues."""
    file.with_suffix(".new").write_text(f"{time.time() + 3600}\nmaintenance\n")
    file.with_suffix(".new").rename(file)
    for line in ("notice received", "notice withdrawn"):
        if agent.wait_line(lambda text, line=line: line in text, now() + LIMIT_S) is None:
            raise BenchmarkError(f"the agent does not log {line!r}.\n{job.tail()}")
        file.unlink(missing_ok=True)
    training.continues()  # steps from before
    return training.continues()


def ended(agent: Job, job: Cluster) -> None:
    if agent.wait_exit(now() + LIMIT_S) is None:
        raise BenchmarkError(f"an agent did not exit.\n{job.tail()}")


def leaving(command: Sequence[str], backend: str, arguments: argparse.Namespace) -> list[Stop]:
    """Let nodes leave and return."""
    moments, more = random.Random(arguments.seed), {"BENCHMARK_LOADER": "1"} if arguments.loader else {}
    found = []
    with meeting_over(backend) as meeting, cluster(command, "1:2", meeting, Shape(2, 0, "stopping.py")) as job:
        nodes, training, saves = [job.start_node(**more), job.start_node(**more)], Training(job), Saves(job)
        training.wait(4)
        saves.next(2)  # of a node that began alone
        for _ in range(arguments.cycles):
            time.sleep(moments.uniform(0, 0.2))
            gone = nodes.pop(moments.randrange(2))
            gone.process.send_signal(signal.SIGTERM)
            ended(gone, job)
            training.wait(2)
            found.append(saves.next(4))
            nodes.append(job.start_node(**more))
            training.wait(4)
            found.append(saves.next(2))
    return found


def stopping(name: str, command: Sequence[str], arguments: argparse.Namespace) -> list[Stop]:
    """Stop whole jobs."""
    moments, found = random.Random(arguments.seed), []
    recipe = {"BENCHMARK_RECIPE": "signal"} if name == "torchrun" else {}
    more = recipe | ({"BENCHMARK_LOADER": "1"} if arguments.loader else {})
    for _ in range(arguments.stops):
        with cluster(command, "2", Meeting("c10d", free_port()), Shape(2, 0, "stopping.py")) as job:
            nodes = [job.start_node(**more), job.start_node(**more)]
            Training(job).wait(4)
            time.sleep(moments.uniform(0, 0.2))
            for agent in nodes:
                agent.process.send_signal(signal.SIGTERM)
            for agent in nodes:
                ended(agent, job)
            found.append(Saves(job).next(4))
    return found


def figures_of(script: str) -> list[float]:
    """The figures that a worker prints, with an agent that watches."""
    with tempfile.TemporaryDirectory() as folder:
        page = StopFile(Path(folder, "stop"))
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={STOP_FILE: str(page.path)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
        page.close()
    return [float(word) for word in done.stdout.split()]


def agreement(agents: int) -> float:
    """Seconds until the last of the agents knows the common step."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    share, words = agents // PROCESSES, [sys.executable, str(WORKERS / "agreeing.py")]
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(
                subprocess.Popen(
                    [*words, str(number * share), str(share), str(store.port), str(share * PROCESSES)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(PROCESSES)
        ]
        for process in made:
            if process.stdout.readline() != "ready\n":
                raise BenchmarkError("an agent did not connect to the store")
        begin = time.monotonic() + 2.0
        for process in made:
            process.stdin.write(f"{begin}\n")
            process.stdin.flush()
        ended = [process.communicate(timeout=LIMIT_S)[0] for process in made]
    return max(map(float, ended)) - begin


def measure(arguments: argparse.Namespace) -> Report:
    """Measure all cases under the chosen launchers."""
    commands = launchers(arguments)
    report = Report("stops", {"cycles": arguments.cycles, "loader": arguments.loader})
    if "elastic" in commands:
        for backend in arguments.backends.split(","):
            found = leaving(commands["elastic"], backend, arguments)
            report.measurements[backend] = [asdict(stop) for stop in found]
            report.rows.append(row(f"{backend}, leaves: whole stops of {len(found)}", {"elastic": found}))
        if arguments.notices:
            noticed = noticing(commands["elastic"], arguments)
            report.measurements["notices"] = [asdict(stop) for stop in noticed.stops]
            report.rows.append(row(f"c10d, notices: whole stops of {len(noticed.stops)}", {"elastic": noticed.stops}))
            times = {"elastic": noticed.seconds}
            report.rows.append(Row.measured("notice until the other node trains alone", "s", times, "< 5"))
            false, kept = len(noticed.undisturbed), sum(noticed.undisturbed)
            what = f"withdrawn notices without effect, of {false}"
            report.rows.append(Row(what, "", {"elastic": kept}, "all", met=kept == false))
        (call,), (asking, silent) = figures_of(CALL), figures_of(TRAINING)
        report.rows.append(Row("one call of should_stop", "ns", {"elastic": call}, "< 1000"))
        what = f"steps per second with the call, to {silent:.0f} without"
        report.rows.append(Row(what, "", {"elastic": asking / silent}))
    for agents in map(int, filter(None, arguments.agents.split(","))):
        times = [agreement(agents) for _ in range(3)]
        report.rows.append(Row.measured(f"{agents} agents agree on a step", "s", {"elastic": times}))
    if arguments.stops:
        all_at_once = {name: stopping(name, command, arguments) for name, command in commands.items()}
        report.measurements["all"] = {name: [asdict(stop) for stop in one] for name, one in all_at_once.items()}
        report.rows.append(row(f"c10d, all: whole stops of {arguments.stops}", all_at_once))
    return report


def row(what: str, found: dict[str, list[Stop]]) -> Row:
    """The number of whole stops, which should be all."""
    ours = found.get("elastic")
    met = all(stop.whole for stop in ours) if ours else None
    return Row(what, "", {name: sum(stop.whole for stop in one) for name, one in found.items()}, "all", met=met)


if __name__ == "__main__":
    sys.exit(main(measure, options()))

"""What does a job survive, and how soon does it train again?

The job has three nodes (`--nnodes=1:3`), each on a separate machine: a network namespace with a link and an address.
Each node has one worker, which runs `workers/ddp.py` (DDP over gloo). Once the workers train, something is lost. The
time runs from that moment to the slowest rank's first optimizer step in the next world. A try has *recovered*, *failed*
or *hung* as in `recovery`.

`--worlds` selects where the nodes meet. With `c10d`, machine 0 hosts the store. With `etcd served`, each machine runs a
member of the cluster. Both endpoints list all three machines. `etcd` is a separate cluster on three more machines.
`local` is one machine with three workers and no endpoint.

- `worker`: a worker gets SIGKILL. `agent`: an agent gets SIGKILL. `machine`: a machine is turned off. In all three
  cases, the affected machine does not host the store.
- `host_told`: the agent of machine 0 gets SIGTERM. The other nodes keep training.
- `host`: machine 0 is turned off and returns after 10 s with a new agent. With `etcd`, a machine of the etcd cluster is
  turned off instead, and the time runs from its return.
- `two`: machines 0 and 1 are turned off. Both return after 10 s.
- `split`: machine 0 is cut off from all other machines for some seconds. `split_last`: machine 2 is cut off.
- `disk`: an etcd member can no longer write, and a worker is killed, so the member has to write.

All other settings are defaults. The steps of every try also show how long two groups of workers trained simultaneously.

By default, only elastic-core's worlds are measured. The world `torchrun` uses torchrun's defaults. `torchrun like` and
`c10d like` use the settings that `like` selects in `recovery`. A table that includes torchrun is named
`losses_torchrun`. Torchrun gets the store's host as an option, because all machines share a host name.
Needs root.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

import psutil
from elastic_testing.machines import Machine, Machines, machines, missing

from benchmarks.cluster import Cluster, Meeting, Shape, Step, cluster
from benchmarks.job import BenchmarkError, launchers
from benchmarks.processes import now
from benchmarks.recovery import FORM_LIMIT_S, MOST_PAUSE_S, SAME, STEPS, UNAWARE_S, kill, note
from benchmarks.report import Report, Row, main, parser

PORT = 29400
WORLD = 3
AWAY_S = 10.0


@dataclass
class Try:
    """Times of one job in seconds. None means that the event did not happen.

    Args:
        recovery_s: from the loss to the first step of the next world.
        workers_s: from the loss until the last of that world's workers was started.
        at_once_s: the longest time for which two groups of workers made steps at the same time.
        tail: the last output of the agents, if the job did not recover.
    """

    outcome: str
    recovery_s: float | None = None
    workers_s: float | None = None
    at_once_s: float = 0.0
    tail: str = ""


class Members:
    """A separate etcd cluster: a member on each of these machines, with data that outlives the process."""

    def __init__(self, machines: Sequence[Machine], folder: Path) -> None:
        self._machines, self._folder = machines, folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(len(machines)):
            self.start(number)

    def start(self, number: int) -> None:
        """Start or restart a member."""
        from elastic_etcd.server.process import find_binary

        own = self._machines[number]
        all_of_them = ",".join(f"m{place}=http://{one.address}:2380" for place, one in enumerate(self._machines))
        clients, peers = f"http://{own.address}:2379", f"http://{own.address}:2380"
        command = [
            *(*own.through, find_binary().path, "--name", f"m{number}", "--data-dir", str(self._folder / f"m{number}")),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", all_of_them, "--log-level", "error"),
        ]
        self.ended(number)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._running[number] = subprocess.Popen(command, **quiet)

    def ended(self, number: int) -> None:
        """Record that a member's machine is off."""
        if number in self._running:
            self._running.pop(number).wait()


class Running:
    """A job of three nodes on three machines, or of one.

    Args:
        job: has no agents yet.
        machines: those of the nodes, followed by those of the etcd cluster, if there is one.
        world: the backend and its options.
        members: the members of the etcd cluster, if there is one.
    """

    def __init__(self, job: Cluster, machines: Machines, world: World, members: Members | None) -> None:
        self.job, self.machines, self._members = job, machines, members
        self._nodes, self._hosted, self._conf = world.nodes, world.hosted, world.conf

    @property
    def last(self) -> Machine:
        """The machine of the last node, which does not host the store."""
        return self.machines[self._nodes - 1]

    @property
    def keeps_workers(self) -> bool:
        """Whether the nodes and their workers survive the loss of a machine that hosts the store."""
        return self._members is not None

    def start(self, place: int) -> None:
        """Start an agent on this machine."""
        more = {"PET_LOCAL_ADDR": self.machines[place].address, "TMPDIR": str(self.job.folder)}
        conf = ",".join([f"is_host={place == 0}", *self._conf])
        self.job.start_node(place, **(more | {"PET_RDZV_CONF": conf} if self._hosted else {}))

    def formed(self) -> bool:
        """Start all agents. Returns whether their workers train in time."""
        deadline = now() + FORM_LIMIT_S
        for place in range(self._nodes):
            self.start(place)
            while self._hosted and not self.machines[0].listens(PORT):
                time.sleep(0.1)
        return self.job.wait_resumed(WORLD, (), STEPS, deadline) is not None

    def off(self, *places: int) -> None:
        """Turn these machines off and, after a while, on again with new agents."""
        for place in places:
            self.machines[place].off()
        time.sleep(AWAY_S)
        for place in places:
            self.machines[place].mend()
        for place in places:
            self.start(place)

    def host_off(self) -> None:
        """Do the same as `off` for the machine of the store, or for one machine of the etcd cluster."""
        if self._members is None:
            self.off(0)
            return
        self.machines[self._nodes].off()
        self._members.ended(0)
        time.sleep(AWAY_S)
        self.machines[self._nodes].mend()
        self._members.start(0)

    def disk_lost(self) -> None:
        """Keep the first etcd member from writing to any file, and kill a worker, so that it has to write."""
        host = self.machines[self._nodes if self._members is not None else 0]
        for process in map(psutil.Process, host.pids()):
            if process.name() == "etcd":
                process.rlimit(psutil.RLIMIT_FSIZE, (0, 0))
        kill(self.job.workers()[2])

    def split(self, place: int, seconds: float) -> None:
        """Cut this machine off from all others for a while."""
        others = [one for one in self.machines if one is not self.machines[place]]
        for other in others:
            self.machines.apart(self.machines[place], other)
        time.sleep(seconds)
        for other in others:
            self.machines.together(self.machines[place], other)


@dataclass(frozen=True)
class Loss:
    """A loss.

    Args:
        cause: causes the loss.
        world_size: size of the world that must train afterwards.
        heals: whether the loss ends before the time starts; the old workers may then keep training.
        of_store: whether the store's machine is lost. If no node runs on that machine, `heals` applies as well.
    """

    title: str
    cause: Callable[[Running], None]
    world_size: int = 3
    heals: bool = False
    of_store: bool = False


LOSSES = {
    "worker": Loss("worker killed", lambda one: kill(one.job.workers()[2])),
    "agent": Loss("agent killed", lambda one: kill(one.job.agents[-1].pid), 2),
    "machine": Loss("machine off", lambda one: one.last.off(), 2),
    "host_told": Loss("SIGTERM to the agent of machine 0", lambda one: one.job.agents[0].process.terminate(), 2),
    "host": Loss("machine 0 off, back after 10 s", lambda one: one.host_off(), of_store=True),
    "two": Loss("machines 0 and 1 off, back after 10 s", lambda one: one.off(0, 1)),
    "split_5": Loss("machine 0 cut off for 5 s, then", lambda one: one.split(0, 5), heals=True),
    "split_60": Loss("machine 0 cut off for 60 s, then", lambda one: one.split(0, 60), heals=True),
    "split_last_5": Loss("machine 2 cut off for 5 s, then", lambda one: one.split(2, 5), heals=True),
    "split_last_60": Loss("machine 2 cut off for 60 s, then", lambda one: one.split(2, 60), heals=True),
    "disk": Loss("etcd member's disk full, worker killed", lambda one: one.disk_lost()),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """A launcher with a rendezvous backend.

    Args:
        hosted: whether an option has to name the store's host, which is then the only machine in the endpoint.
        conf: more rendezvous options.
        nodes: 1 (with three workers) or 3 (with one worker each).
        members: number of members of a separate etcd cluster.
        lacks: losses that cannot happen in this world.
    """

    launcher: str
    backend: str
    options: tuple[str, ...] = ()
    conf: tuple[str, ...] = ()
    hosted: bool = False
    port: int = PORT
    nodes: int = WORLD
    members: int = 0
    lacks: tuple[str, ...] = ("disk",)


ALONE = ("host", "two", "split_5", "split_60", "split_last_5", "split_last_60", "disk")
WORLDS = {
    "local": World("elastic", "c10d", nodes=1, lacks=ALONE),
    "c10d": World("elastic", "c10d"),
    "etcd served": World("elastic", "etcd", ("--rdzv-conf=serve=true",), port=2379, lacks=()),
    "etcd": World("elastic", "etcd", port=2379, members=3, lacks=()),
    "c10d like": World("elastic", "c10d", (f"--rdzv-conf={SAME}",)),
    "torchrun": World("torchrun", "c10d", hosted=True),
    "torchrun like": World("torchrun", "c10d", conf=(SAME,), hosted=True),
}
USUAL = ("local", "c10d", "etcd served", "etcd")


@dataclass
class Figures:
    """All tries of one loss in one world."""

    tries: list[Try] = field(default_factory=list)

    def times(self, name: str) -> list[float]:
        """One kind of time, of the tries that have it."""
        return [value for one in self.tries if (value := getattr(one, name)) is not None]


def longest_overlap(steps: Sequence[Step]) -> float:
    """The longest overlap of two groups of workers in seconds, each taken from its first step to its last."""
    groups: dict[str, list[float]] = {}
    for step in steps:
        groups.setdefault(step.group, []).append(step.at)
    spans = [(min(times), max(times)) for times in groups.values()]
    return max((0.0, *(min(a[1], b[1]) - max(a[0], b[0]) for a, b in combinations(spans, 2))))


def attempt(world: World, launcher: Sequence[str], loss: Loss, number: int, arguments: argparse.Namespace) -> Try:
    """Run one job until it recovers or reaches the limit."""
    with machines(world.nodes + world.members) as made:
        hosts = [machine.address for machine in made][world.nodes if world.members else 0 :]
        meeting = Meeting(world.backend, world.port, tuple(hosts[: 1 if world.hosted else None]))
        shape = Shape(WORLD // world.nodes, options=world.options)
        with cluster(launcher, "1" if world.nodes == 1 else f"1:{WORLD}", meeting, shape, list(made)) as job:
            members = Members(list(made)[world.nodes :], job.folder) if world.members else None
            running = Running(job, made, world, members)
            if not running.formed():
                return Try("never formed", tail=job.tail())
            time.sleep(random.Random(f"{arguments.seed}/{number}").uniform(0, MOST_PAUSE_S))
            return lost(running, loss, arguments.limit)


def lost(running: Running, loss: Loss, limit_s: float) -> Try:
    """Cause the loss, and watch the job."""
    job = running.job
    heals = loss.heals or (loss.of_store and running.keeps_workers)
    old = () if heals else tuple(job.workers().values())
    at = now()
    loss.cause(running)
    if heals:
        at = now()
    back = job.wait_resumed(loss.world_size, old, STEPS, now() + limit_s, at)
    made = Try("recovered", at_once_s=longest_overlap(job.steps()))
    if back is not None:
        made.recovery_s, made.workers_s = back.at - at, max(0.0, back.started - at)
        return made
    if all(agent.process.poll() is not None for agent in job.agents):
        made.outcome = "failed"
    else:
        made.outcome = "trained on unaware" if job.trains(old, UNAWARE_S) else "hung"
    made.tail = job.tail()
    return made


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser for a comma-separated choice of these names."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(known)})")
        return found

    return read


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--worlds", type=names(list(WORLDS)), default=list(USUAL), help=f"which ({','.join(WORLDS)})")
    made.add_argument("--losses", type=names(list(LOSSES)), default=list(LOSSES), help=f"which ({','.join(LOSSES)})")
    made.add_argument("--runs", type=int, help="tries of each (3, or 10 if torchrun is measured)")
    made.add_argument("--limit", type=float, default=90.0, help="seconds after which a try is considered hung (90)")
    made.add_argument("--seed", type=int, default=1, help="seed of the pauses before losses (1)")
    return made


def measure(arguments: argparse.Namespace) -> Report:
    """Measure the chosen losses, cycling through the chosen worlds."""
    if reason := missing():
        raise BenchmarkError(reason)
    commands = launchers(arguments)
    worlds = {name: WORLDS[name] for name in arguments.worlds if WORLDS[name].launcher in commands}
    compared = any(world.launcher == "torchrun" for world in worlds.values())
    arguments.runs = arguments.runs or (10 if compared else 3)
    report = Report("losses_torchrun" if compared else "losses", {"machines": 3, "nproc_per_node": 1})
    for name in arguments.losses:
        figures = {where: Figures() for where, world in worlds.items() if name not in world.lacks}
        for number in range(arguments.runs):
            for where, world in ((where, worlds[where]) for where in figures):
                made = attempt(world, commands[world.launcher], LOSSES[name], number, arguments)
                narrate(where, name, number, made)
                figures[where].tries.append(made)
        report.rows += rows(LOSSES[name], figures, arguments.limit)
        report.measurements[name] = {where: [asdict(one) for one in of.tries] for where, of in figures.items()}
    return report


def rows(loss: Loss, figures: dict[str, Figures], limit_s: float) -> list[Row]:
    """Rows with the times of the tries that recovered, and the number that failed or hung."""
    made = {where: len(of.tries) for where, of in figures.items()}
    notes = {where: note(of.tries, limit_s) for where, of in figures.items()}
    together = {where: max((one.at_once_s for one in of.tries), default=0.0) for where, of in figures.items()}
    title = f"{loss.title}: next step at world size {loss.world_size}"
    return [
        Row.measured(title, "s", {where: of.times("recovery_s") for where, of in figures.items()}, made=made,
                     notes=notes),
        Row.measured("- of that, until its workers were started", "s",
                     {where: of.times("workers_s") for where, of in figures.items()}, made=made),
        *([Row("- longest overlap of two groups", "s", together)] if any(together.values()) else []),
    ]  # fmt: skip


def narrate(where: str, name: str, number: int, made: Try) -> None:
    """Print a line per try, because all tries take long."""
    after = "" if made.recovery_s is None else f" after {made.recovery_s:.2f} s (workers {made.workers_s:.2f} s)"
    print(f"{where} {name} {number + 1}: {made.outcome}{after}, two groups for {made.at_once_s:.2f} s", flush=True)
    if made.tail:
        print("".join(f"    {line}\n" for line in made.tail.splitlines()), flush=True)


if __name__ == "__main__":
    sys.exit(main(measure, options()))

"""What does a job survive, and how soon does it train again?

A job of three nodes (`--nnodes=1:3`), each on a machine of its own: a network name space with a link and an address.
Each has one worker that runs `workers/ddp.py` (DDP over gloo). With c10d machine 0 hosts the store, with `etcd served`
each has a member of the cluster; the endpoint names all three. `etcd` is a cluster of somebody, on three machines more.
`local` is one machine with three workers, which meets nobody. Once they train, something is lost. Measured is from that
moment to the first optimizer step of the world afterwards, of its slowest rank. A try has *recovered*, *failed* or
*hung* as in `recovery`.

- `worker`: SIGKILL to a worker. `agent`: SIGKILL to an agent. `machine`: one is off; none of these with the store.
- `host_told`: SIGTERM to the agent of machine 0. The others go on.
- `host`: machine 0 is off. After 10 s it is on again, and an agent is started there. With `etcd` it is a machine of the
  cluster, and its member; the time counts from its return.
- `two`: machines 0 and 1 are off; both come back after 10 s.
- `split`: machine 0 is cut off from all others for some seconds; `split_last`: machine 2 is.
- `disk`: a member of the etcd can write no more, and a worker is killed, which has to be written down.

All else is default. The steps of every try also show how long two groups of workers trained at the same time.

elastic-core's worlds are measured unless `--worlds` names others. `torchrun` has its defaults; `torchrun like` has the
settings that `recovery` gives both launchers like for like, and `c10d like` has the same. A table with torchrun in it
is `losses_torchrun`. torchrun gets the machine that hosts the store as an option, since all machines have one host name
here. Root only.
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
    """One job, in seconds. What did not come about is None.

    Args:
        recovery_s: from the loss to the first step of the world afterwards.
        workers_s: until the last of its workers was started.
        at_once_s: for how long at most two groups of workers made steps at the same time.
        tail: what the agents said last, where the job did not recover.
    """

    outcome: str
    recovery_s: float | None = None
    workers_s: float | None = None
    at_once_s: float = 0.0
    tail: str = ""


class Members:
    """An etcd cluster of somebody: a member on each of these machines, with data that outlives it."""

    def __init__(self, machines: Sequence[Machine], folder: Path) -> None:
        self._machines, self._folder = machines, folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(len(machines)):
            self.start(number)

    def start(self, number: int) -> None:
        """This one, anew if it has run before."""
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
        """Its machine is off."""
        if number in self._running:
            self._running.pop(number).wait()


class Running:
    """A job of three nodes on three machines, or of one.

    Args:
        job: not started yet.
        machines: of the nodes, and then of the etcd cluster, if there is one.
        world: where they meet.
        members: of the etcd cluster.
    """

    def __init__(self, job: Cluster, machines: Machines, world: World, members: Members | None) -> None:
        self.job, self.machines, self._members = job, machines, members
        self._nodes, self._hosted, self._conf = world.nodes, world.hosted, world.conf

    @property
    def last(self) -> Machine:
        """Of the nodes; it does not host the store."""
        return self.machines[self._nodes - 1]

    @property
    def keeps_workers(self) -> bool:
        """Whether the loss of a host of the store is none for the nodes."""
        return self._members is not None

    def start(self, place: int) -> None:
        """An agent there."""
        more = {"PET_LOCAL_ADDR": self.machines[place].address, "TMPDIR": str(self.job.folder)}
        conf = ",".join([f"is_host={place == 0}", *self._conf])
        self.job.start_node(place, **(more | {"PET_RDZV_CONF": conf} if self._hosted else {}))

    def formed(self) -> bool:
        """Let all three train."""
        deadline = now() + FORM_LIMIT_S
        for place in range(self._nodes):
            self.start(place)
            while self._hosted and not self.machines[0].listens(PORT):
                time.sleep(0.1)
        return self.job.wait_resumed(WORLD, (), STEPS, deadline) is not None

    def off(self, *places: int) -> None:
        """These machines lose power, and come back with new agents."""
        for place in places:
            self.machines[place].off()
        time.sleep(AWAY_S)
        for place in places:
            self.machines[place].mend()
        for place in places:
            self.start(place)

    def host_off(self) -> None:
        """As `off` for the machine of the store, or for one of those."""
        if self._members is None:
            self.off(0)
            return
        self.machines[self._nodes].off()
        self._members.ended(0)
        time.sleep(AWAY_S)
        self.machines[self._nodes].mend()
        self._members.start(0)

    def disk_lost(self) -> None:
        """The first member of the etcd can write to no file any more. It learns that when it has to."""
        host = self.machines[self._nodes if self._members is not None else 0]
        for process in map(psutil.Process, host.pids()):
            if process.name() == "etcd":
                process.rlimit(psutil.RLIMIT_FSIZE, (0, 0))
        kill(self.job.workers()[2])

    def split(self, place: int, seconds: float) -> None:
        """This machine does not reach the others for so long."""
        others = [one for one in self.machines if one is not self.machines[place]]
        for other in others:
            self.machines.apart(self.machines[place], other)
        time.sleep(seconds)
        for other in others:
            self.machines.together(self.machines[place], other)


@dataclass(frozen=True)
class Loss:
    """What happens.

    Args:
        cause: does it.
        world_size: of the world that must train afterwards.
        heals: whether the time counts from when all is there again; the workers may be the old ones then.
        of_store: it is the machine of the store that is lost, which may be none of the nodes'; then the same holds.
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
    "disk": Loss("disk of a member of the etcd full, worker killed", lambda one: one.disk_lost()),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """Where the nodes meet.

    Args:
        hosted: whether the machine that hosts the store has to be told so; then only that one is the endpoint.
        conf: more of its rendezvous options.
        nodes: one, with three workers, or three, with one each.
        members: of an etcd cluster, on machines of their own.
        lacks: what cannot happen there.
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


def at_once(steps: Sequence[Step]) -> float:
    """For how many seconds at most two groups of workers were at work at the same time: each from its first step to
    its last."""
    groups: dict[str, list[float]] = {}
    for step in steps:
        groups.setdefault(step.group, []).append(step.at)
    spans = [(min(times), max(times)) for times in groups.values()]
    return max((0.0, *(min(a[1], b[1]) - max(a[0], b[0]) for a, b in combinations(spans, 2))))


def attempt(world: World, launcher: Sequence[str], loss: Loss, number: int, arguments: argparse.Namespace) -> Try:
    """One job, from its start to its recovery or the limit."""
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
    """Let it happen, and see what becomes of the job."""
    job = running.job
    heals = loss.heals or (loss.of_store and running.keeps_workers)
    old = () if heals else tuple(job.workers().values())
    at = now()
    loss.cause(running)
    if heals:
        at = now()
    back = job.wait_resumed(loss.world_size, old, STEPS, now() + limit_s, at)
    made = Try("recovered", at_once_s=at_once(job.steps()))
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
    """Reads some of these from the command line."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
        return found

    return read


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--worlds", type=names(list(WORLDS)), default=list(USUAL), help=f"which ({','.join(WORLDS)})")
    made.add_argument("--losses", type=names(list(LOSSES)), default=list(LOSSES), help=f"which ({','.join(LOSSES)})")
    made.add_argument("--runs", type=int, help="tries of each (3; with a world of torchrun 10)")
    made.add_argument("--limit", type=float, default=90.0, help="seconds after which a try counts as hung (90)")
    made.add_argument("--seed", type=int, default=1, help="of the pause before something happens (1)")
    return made


def measure(arguments: argparse.Namespace) -> Report:
    """All losses asked for, in all worlds asked for, in turn."""
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
    """The times of the tries that recovered, and how many failed or hung."""
    made = {where: len(of.tries) for where, of in figures.items()}
    notes = {where: note(of.tries, limit_s) for where, of in figures.items()}
    together = {where: max((one.at_once_s for one in of.tries), default=0.0) for where, of in figures.items()}
    title = f"{loss.title}: next step at world size {loss.world_size}"
    return [
        Row.measured(title, "s", {where: of.times("recovery_s") for where, of in figures.items()}, made=made,
                     notes=notes),
        Row.measured("- of that, until its workers were started", "s",
                     {where: of.times("workers_s") for where, of in figures.items()}, made=made),
        *([Row("- two groups at work at once, at most", "s", together)] if any(together.values()) else []),
    ]  # fmt: skip


def narrate(where: str, name: str, number: int, made: Try) -> None:
    """One line per try: all of them take long."""
    after = "" if made.recovery_s is None else f" after {made.recovery_s:.2f} s (workers {made.workers_s:.2f} s)"
    print(f"{where} {name} {number + 1}: {made.outcome}{after}, two at once {made.at_once_s:.2f} s", flush=True)
    if made.tail:
        print("".join(f"    {line}\n" for line in made.tail.splitlines()), flush=True)


if __name__ == "__main__":
    sys.exit(main(measure, options()))

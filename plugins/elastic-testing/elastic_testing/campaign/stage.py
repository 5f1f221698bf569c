"""Where a job of a campaign happens: its agents, its servers, their disks and clocks, and the file of events.

The agents are started as users start them, each on a machine of its own where there are name spaces, else all on this
one. Whoever is gone is started anew, as a scheduler does. All is done in one thread, a look every `LOOK_S`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from elastic_testing.campaign.setting import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_testing.campaign.history import Event
    from elastic_testing.campaign.setting import Setting
    from elastic_testing.machines import Machine

LOOK_S = 0.02
END_S = 20.0
"""For what the end of a job has to end by itself, such as leases."""
DISK_BYTES = 512 * 2**20


def now() -> float:
    """Seconds since boot, as the workers write them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lives(pid: int) -> bool:
    """Whether it runs: one that is only waited for does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


class Seen:
    """What the workers have written so far."""

    def __init__(self) -> None:
        self._starts: list[Event] = []
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self.ended: set[int] = set()

    def take(self, event: Event) -> None:
        """One more event."""
        what, pid, at = event["what"], event.get("pid", 0), event["at"]
        if what == "start":
            self._starts.append(event)
        elif what == "step":
            self._first.setdefault(pid, at)
            self._last[pid] = at
        elif what == "end":
            self.ended.add(pid)

    def running(self) -> dict[int, str]:
        """The workers that live, by process id: the names of their nodes."""
        of_late = {event["pid"]: event["node"] for event in self._starts[-200:] if event["pid"] not in self.ended}
        return {pid: node for pid, node in of_late.items() if lives(pid)}

    def whole(self, nodes: set[str], since: float, begun: float) -> tuple[float, float] | None:
        """When the newest round last made a step, and when the slowest of its ranks made its first; None unless it is a
        round of these nodes that has begun after `begun`, and the step is after `since`."""
        mine = [event for event in self._starts[-len(nodes) :]
                if all(event[name] == self._starts[-1][name] for name in ("at_port", "restart"))]  # fmt: skip
        pids = {event["rank"]: event["pid"] for event in mine}
        if {event["node"] for event in mine} != nodes or min(event["at"] for event in mine) < begun:
            return None
        if not all(pid in self._first for pid in pids.values()) or self._last[pids[0]] <= since:
            return None
        if not all(map(lives, pids.values())):  # a step may have been under way
            return None
        return self._last[pids[0]], max(self._first[pid] for pid in pids.values())


@dataclass
class Agent:
    """One that was started. Its stage alone says what it is `expected` to end with, and that it is `lost` or `over`."""

    name: str
    place: int
    process: subprocess.Popen[bytes]
    said: Path
    expected: set[int] = field(default_factory=set)
    lost: bool = False
    over: bool = False


class Stage:
    """What there is of one job.

    Args:
        setting: of the job.
        folder: an empty one, for all that is written.
        run_id: of the job.
    """

    def __init__(self, setting: Setting, folder: Path, run_id: str) -> None:
        self.setting, self.folder, self._id = setting, folder, run_id
        self.there = setting.there
        self.record = folder / "history"
        self.seen = Seen()
        self.finishing = False
        self.ended: list[Agent] = []
        self._read = 0
        self._agents: dict[int, Agent] = {}
        self._running: list[Agent] = []
        self._servers: list[subprocess.Popen[bytes]] = []
        self._commands: list[subprocess.Popen[bytes]] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._away: set[int] = set()
        self._spoilt: list[int] = []  # places whose disks take nothing, once for each fault

    def set_up(self) -> None:
        """Disks, clocks, servers and agents."""
        disks = self.folder / "disks"
        disks.mkdir()
        if self.setting.machines:  # shared, so that what is mounted later is seen where agents run
            mount("--make-shared", "-t", "tmpfs", "-o", "size=1m", "none", str(disks))
        for place in range(self.setting.nodes):
            self.disk(place).mkdir()
            if self.setting.machines:
                mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(self.disk(place)))
        if {"clock", "cc"} <= self.there:
            source = Path(__file__).with_name("clock.c")
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.folder / "clock.so", source], check=True)
            for place in range(self.setting.nodes):
                self._clock(place).write_bytes(bytes(8))
        for number in range(len(self.setting.servers)):
            self._start_server(number)
        for place in range(self.setting.nodes):
            self.start(place)

    def tear_down(self) -> None:
        """End what still runs, and tell what should not."""
        for agent in self._running:  # it should have ended: its stacks, at the end of its log, say why it has not
            agent.process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(5.0)
            agent.process.kill()
            agent.process.wait()
        self.ended += self._running
        for group in GROUPS.glob(f"elastic-campaign-{os.getpid()}-*"):
            with contextlib.suppress(OSError):
                group.rmdir()
        deadline = now() + END_S  # leases of agents that were killed end by themselves
        while (stored := self.setting.left()) and now() < deadline:
            time.sleep(1.0)
        for line in stored:
            self.tell("left", kind="store", name=line, place=-1)
        for started in [*self._servers, *self._commands]:
            started.kill()
            started.wait()
        deadline = now() + END_S
        while (mine := _marked(self.record)) and now() < deadline:
            time.sleep(LOOK_S)
        for process in mine:
            with contextlib.suppress(psutil.Error):
                self.tell("left", kind="process", name=" ".join(process.cmdline())[:200], place=-1)
                process.kill()
        for place in range(self.setting.nodes):
            for path in self.disk(place).glob("elastic*") if self.disk(place).is_dir() else ():
                self.tell("left", kind="file", name=str(path.relative_to(self.folder)), place=place)
        if self.setting.machines:
            for place in range(self.setting.nodes):
                while unmount(self.disk(place)):
                    pass
            unmount(self.folder / "disks")

    def nodes(self) -> set[str] | None:
        """The names of those that are there; None if there are too few."""
        names = {agent.name for agent in self._agents.values() if not agent.over}
        return names if len(names) == self.setting.nodes else None

    def agents(self) -> list[Agent]:
        """The newest one of each place."""
        return list(self._agents.values())

    def runs(self) -> bool:
        """Whether any agent does."""
        return bool(self._running)

    def tell(self, what: str, **more: Any) -> None:
        """Write an event down."""
        line = json.dumps({"at": now(), "wall": time.time(), "what": what, **more})
        with self.record.open("a") as file:
            file.write(line + "\n")

    def look(self) -> None:
        """Read what is new, do what is due, and see who has ended."""
        if self.record.exists():
            with self.record.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            for line in whole.splitlines():
                self.seen.take(json.loads(line))
        while self._due and self._due[0][0] <= now():
            heapq.heappop(self._due)[2]()
        for agent in [one for one in self._running if one.process.poll() is not None]:
            self._saw_end(agent)
        self._commands = [one for one in self._commands if one.poll() is None]

    def _saw_end(self, agent: Agent) -> None:
        agent.over = True
        self._running.remove(agent)
        self.ended.append(agent)
        last = agent.said.read_text(errors="replace").strip().splitlines()[-1:]
        expected = sorted(agent.expected) if not self.finishing else sorted({0, *agent.expected})
        self.tell("agent ended", node=agent.name, place=agent.place, pid=agent.process.pid,
                   code=agent.process.returncode, expected=expected, last="".join(last)[-400:])  # fmt: skip
        mine = self._agents.get(agent.place) is agent
        if mine and not agent.lost and not self.finishing:
            self.later(1.0, lambda: self.start(agent.place))  # a scheduler would, too

    def until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Look until it holds; False after so many seconds."""
        deadline = now() + limit_s
        while True:
            self.look()
            if condition():
                return True
            if now() > deadline:
                return False
            time.sleep(LOOK_S)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it then, in the course of a look."""
        heapq.heappush(self._due, (now() + seconds, next(self._count), do))

    def machine(self, place: int) -> Machine | None:
        """The one there, if each place has its own."""
        return self.setting.machines[place] if self.setting.machines else None

    def disk(self, place: int) -> Path:
        """Its folder for all that is temporary."""
        return self.folder / "disks" / str(place)

    def _clock(self, place: int) -> Path:
        return self.folder / f"clock{place}"

    def _environment(self, place: int, **more: str) -> dict[str, str]:
        machine = self.machine(place)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "PET_"))}
        own = dict(machine.environment) if machine else {"ELASTIC_LOCAL_ADDR": "127.0.0.1"}
        if {"clock", "cc"} <= self.there:
            own |= {"LD_PRELOAD": str(self.folder / "clock.so"), "CAMPAIGN_CLOCK": str(self._clock(place))}
        told = {"CAMPAIGN_HISTORY": str(self.record), "CAMPAIGN_FOLDER": str(self.folder)}
        told["PYTHONFAULTHANDLER"] = "1"  # see `tear_down`
        return {**kept, "TMPDIR": str(self.disk(place)), **own, **told, **self.setting.environment, **more}

    def _through(self, place: int) -> list[str]:
        machine = self.machine(place)
        return machine.through if machine else []

    def _meeting(self, run_id: str = "") -> list[str]:
        conf = ",".join(f"{name}={value}" for name, value in self.setting.conf.items())
        where = [f"--rdzv-backend={self.setting.backend}", f"--rdzv-id={run_id or self._id}"]
        where += [f"--rdzv-endpoint={self.setting.endpoint}"] if self.setting.endpoint else []
        where += [f"--rdzv-secret-file={self.setting.secret}"] if self.setting.secret else []
        return [*where, *([f"--rdzv-conf={conf}"] if conf else [])]

    def _spawn(self, name: str, place: int, meeting: Sequence[str], nnodes: str, **more: str) -> Agent:
        own = [f"--nnodes={nnodes}", "--max-restarts=1000000", *self.setting.flags, *self.setting.own(place)]
        if "elastic" in self.setting.have:
            own += [f"--node-id={name}", "--log-format=json"]
        command = [*self._through(place), *self.setting.launcher, *meeting, *own, *self.setting.worker]
        said = self.folder / f"{name}.log"
        with said.open("ab") as file:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                       env=self._environment(place, CAMPAIGN_NODE=name, **more))  # fmt: skip
        self.tell("agent", node=name, place=place, pid=process.pid)
        self._running.append(Agent(name, place, process, said, {2} if place in self._spoilt else set()))
        return self._running[-1]

    def _nnodes(self) -> str:
        count = self.setting.nodes
        return str(count) if self.setting.fixed else f"{count // 2 + 1}:{count}"

    def start(self, place: int) -> None:
        """An agent comes there, unless the machine is off."""
        if place in self._away or self.finishing:
            return
        name = f"n{place}.{next(self._count)}"
        self._agents[place] = self._spawn(name, place, self._meeting(), self._nnodes())

    def _start_server(self, number: int) -> None:
        server = self.setting.servers[number]
        through = server.machine.through if server.machine else []
        quiet = subprocess.DEVNULL
        with (self.folder / f"server{number}.log").open("ab") as log:
            process = subprocess.Popen([*through, *server.command], cwd=self.folder, stdin=quiet, stdout=log,
                                       stderr=log)  # fmt: skip
        self._servers[number : number + 1] = [process]

    def spare(self, place: int) -> Agent:
        """One more agent than the job takes comes there."""
        return self._spawn(f"more{place}.{next(self._count)}", place, self._meeting(), self._nnodes())

    def second_job(self, place: int) -> tuple[Agent, Path]:
        """An agent of another job comes there; the file with which it is to finish."""
        name = f"second{next(self._count)}"
        folder = self.folder / name
        folder.mkdir()
        own = {"CAMPAIGN_FOLDER": str(folder), "CAMPAIGN_HISTORY": str(folder / "history")}
        agent = self._spawn(name, place, self._meeting(name), "1", **own)
        agent.expected |= {0}
        return agent, folder / "finish"

    def is_away(self, place: int) -> bool:
        """Whether the machine there is off."""
        return place in self._away

    def goes_off(self, place: int) -> None:
        """The machine there: whoever runs on it is lost."""
        self._away.add(place)
        for one in (other for other in self._running if other.place == place):
            self.loses(one, -signal.SIGKILL)

    def comes_back(self, place: int) -> None:
        """The machine there, and a new agent on it."""
        self._away.discard(place)
        self.start(place)

    def loses(self, agent: Agent, *codes: int) -> None:
        """It is not started anew at once, and may end with these."""
        agent.expected |= set(codes)
        agent.lost = True

    def may_end(self, agent: Agent | None, *codes: int) -> None:
        """With these, without being lost."""
        if agent is not None:
            agent.expected |= set(codes)

    def keeps(self, agent: Agent) -> None:
        """It was not lost after all."""
        agent.lost = agent.over

    def replaces(self, agent: Agent) -> None:
        """A new one comes where it was, if none has yet."""
        if self._agents[agent.place] is agent:
            self.start(agent.place)

    def spoils(self, place: int) -> None:
        """The disk there takes nothing: an agent that has to write says so, and ends with 2."""
        self._spoilt.append(place)
        for one in (other for other in self._running if other.place == place):
            self.may_end(one, 2)

    def heals(self, place: int) -> None:
        """The disk there takes what it is given."""
        self._spoilt.remove(place)  # another fault may spoil it still

    def sets_clock(self, place: int, seconds: int) -> None:
        """By how much the wall clock there is wrong."""
        with self._clock(place).open("r+b") as file:  # in its place: it is mapped
            file.write(struct.pack("=q", seconds))

    def finish(self, stay: str = "") -> None:
        """All workers end well; `stay` is who ends at once and for how many seconds the others go on, see `worker`."""
        if stay:
            (self.folder / "stay").write_text(stay)
        self.finishing = True
        (self.folder / "finish").touch()

    def member(self, place: int) -> int | None:
        """The process id of a member of the etcd: a server, or one that the agent there serves."""
        if not self.setting.servers:
            return self.helper(place, "/etcd --name")
        return self._servers[place].pid if self._servers[place].poll() is None else None

    def member_again(self, place: int, pid: int) -> None:
        """The server that was told to end is started anew, unless that has been done after another fault."""
        if self._servers[place].pid == pid:
            self._servers[place].wait()
            self._start_server(place)

    def worker(self, place: int) -> int | None:
        """The process id of the one that runs there."""
        agent = self._agents.get(place)
        mine = [pid for pid, node in self.seen.running().items() if agent and node == agent.name]
        return mine[-1] if mine else None

    def helper(self, place: int, words: str) -> int | None:
        """A process that the agent there has started, or one of these, by its command line."""
        agent = self._agents.get(place)
        if agent is None or agent.over:
            return None
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(agent.process.pid).children(recursive=True)
            for child in reversed(found):  # those that were started last; the keeper has the words of what it keeps
                with contextlib.suppress(psutil.Error):
                    if words in " ".join(child.cmdline()):
                        return child.pid
        return None

    def agent(self, place: int) -> Agent | None:
        """The one there, unless it has ended."""
        agent = self._agents.get(place)
        return None if agent is None or agent.over else agent

    def ask(self, place: int, command: str, *more: str) -> subprocess.Popen[bytes]:
        """Another command of ours, there."""
        at = [f"--rdzv-endpoint={self.setting.looked_at}"] if self.setting.looked_at else []
        words = [*self._through(place), sys.executable, "-m", "elastic_core", command, *self._meeting(), *at, *more]
        with (self.folder / f"{command}.log").open("ab") as file:
            made = subprocess.Popen(words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    env=self._environment(place))  # fmt: skip
        self._commands.append(made)
        return made


def _marked(record: Path) -> list[psutil.Process]:
    """Processes of the job: they have the file of its history in their environment."""
    return [process for process in psutil.process_iter()
            if _environment_of(process).get("CAMPAIGN_HISTORY") == str(record) and lives(process.pid)]  # fmt: skip


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def mount(*words: str) -> None:
    """As mount(8) says."""
    subprocess.run(["mount", *words], check=True, capture_output=True)


def unmount(path: Path) -> bool:
    """Whether something was mounted there."""
    return subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True).returncode == 0

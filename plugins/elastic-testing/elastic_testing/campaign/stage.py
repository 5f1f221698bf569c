"""Manages a campaign's job: agents, servers, their disks and clocks, and the event file.

Agents are started as users would start them. If there are simulated machines, each agent runs on a separate one. An
agent that has exited is restarted, as a scheduler would do. Everything runs in one thread, which polls every `LOOK_S`
seconds.
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
"""Seconds allowed for faults to end, and, at the end of a job, for leases to expire and for processes to exit."""
DISK_BYTES = 512 * 2**20


def now() -> float:
    """Return the seconds since boot, measured by the same clock as in the workers' events."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lives(pid: int) -> bool:
    """Return whether the process is running and is not a zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


class Seen:
    """The workers' events so far."""

    def __init__(self) -> None:
        self._starts: list[Event] = []
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self.ended: set[int] = set()

    def take(self, event: Event) -> None:
        """Add an event."""
        what, pid, at = event["what"], event.get("pid", 0), event["at"]
        if what == "start":
            self._starts.append(event)
        elif what == "step":
            self._first.setdefault(pid, at)
            self._last[pid] = at
        elif what == "end":
            self.ended.add(pid)

    def running(self) -> dict[int, str]:
        """Return the node name of each running worker, by process ID."""
        of_late = {event["pid"]: event["node"] for event in self._starts[-200:] if event["pid"] not in self.ended}
        return {pid: node for pid, node in of_late.items() if lives(pid)}

    def whole(self, nodes: set[str], since: float, begun: float) -> tuple[float, float] | None:
        """Return the times of the newest round's last step and of its slowest rank's first step. Returns None unless
        the round has exactly these nodes, started after `begun`, and took its last step after `since`."""
        mine = [event for event in self._starts[-len(nodes) :]
                if all(event[name] == self._starts[-1][name] for name in ("at_port", "restart"))]  # fmt: skip
        pids = {event["rank"]: event["pid"] for event in mine}
        if {event["node"] for event in mine} != nodes or min(event["at"] for event in mine) < begun:
            return None
        if not all(pid in self._first for pid in pids.values()) or self._last[pids[0]] <= since:
            return None
        if not all(map(lives, pids.values())):  # the last step may be that of a worker that has died in the meantime
            return None
        return self._last[pids[0]], max(self._first[pid] for pid in pids.values())


@dataclass
class Agent:
    """An agent that was started. `said` is its log. `expected` contains the allowed exit codes, `lost` is true if the
    agent will not be restarted automatically, and `over` is true if it has exited. Only the stage changes these three
    fields."""

    name: str
    place: int
    process: subprocess.Popen[bytes]
    said: Path
    expected: set[int] = field(default_factory=set)
    lost: bool = False
    over: bool = False


class JobStage:
    """The processes and files of one job.

    Args:
        setting: the setting of the job.
        folder: an empty folder for all files.
        run_id: the job's run ID.
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
        self._first = self._awaited = setting.nodes  # how many nodes start with the job, and how many have been started
        self._spoilt: list[int] = []  # places with unwritable disks; each is listed once per fault

    def set_up(self, late: set[int]) -> None:
        """Create disks and clocks, and start servers and agents, except at the places `late`, which `joins` starts."""
        self._away |= late
        self._first = self._awaited = self.setting.nodes - len(late)
        self.tell("job", hosted="hosted" in self.there)
        disks = self.folder / "disks"
        disks.mkdir(parents=True)
        if self.setting.machines:  # shared, so that later mounts are visible in the agents' namespaces
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
        """End all processes, and record the items that were left behind."""
        for agent in self._running:  # the agent is overdue; SIGABRT makes it write its stacks to the end of its log
            agent.process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(5.0)
            agent.process.kill()
            agent.process.wait()
        self.ended += self._running
        for group in GROUPS.glob(f"elastic-campaign-{os.getpid()}-*"):
            with contextlib.suppress(OSError):
                group.rmdir()
        deadline = now() + END_S  # until the leases of killed agents expire
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
        """Return the names of the running nodes, or None if any node that has been started is missing."""
        names = {agent.name for agent in self._agents.values() if not agent.over}
        return names if len(names) == self._awaited else None

    def agents(self) -> list[Agent]:
        """Return the newest agent of each place."""
        return list(self._agents.values())

    def runs(self) -> bool:
        """Return whether any agent is running."""
        return bool(self._running)

    def tell(self, what: str, **more: Any) -> None:
        """Record an event."""
        line = json.dumps({"at": now(), "wall": time.time(), "what": what, **more})
        with self.record.open("a") as file:
            file.write(line + "\n")

    def look(self) -> None:
        """Read new events, make the scheduled calls that are due, and check which agents have exited."""
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
            self.later(1.0, lambda: self.start(agent.place))  # as a scheduler would

    def until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Poll until the condition holds. Returns False after `limit_s` seconds."""
        deadline = now() + limit_s
        while True:
            self.look()
            if condition():
                return True
            if now() > deadline:
                return False
            time.sleep(LOOK_S)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Schedule a call that `look` makes after `seconds`."""
        heapq.heappush(self._due, (now() + seconds, next(self._count), do))

    def machine(self, place: int) -> Machine | None:
        """Return the simulated machine of this place, or None if there is none."""
        return self.setting.machines[place] if self.setting.machines else None

    def disk(self, place: int) -> Path:
        """Return the folder for the temporary files of this place."""
        return self.folder / "disks" / str(place)

    def _clock(self, place: int) -> Path:
        return self.folder / f"clock{place}"

    def _environment(self, place: int, **more: str) -> dict[str, str]:
        machine = self.machine(place)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "PET_"))}
        own = dict(machine.environment) if machine else {"ELASTIC_LOCAL_ADDR": "127.0.0.1"}
        if {"clock", "cc"} <= self.there:
            own |= {"LD_PRELOAD": str(self.folder / "clock.so"), "CAMPAIGN_CLOCK": str(self._clock(place))}
        campaign = {"CAMPAIGN_HISTORY": str(self.record), "CAMPAIGN_FOLDER": str(self.folder)}
        campaign["PYTHONFAULTHANDLER"] = "1"  # see `tear_down`
        return {**kept, "TMPDIR": str(self.disk(place)), **own, **campaign, **self.setting.environment, **more}

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
        return str(count) if self.setting.fixed else f"{min(count // 2 + 1, self._first)}:{count}"

    def start(self, place: int) -> None:
        """Start an agent, unless the machine is off or the job is finishing."""
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
        """Start a spare: an agent beyond the job's maximum number of nodes."""
        return self._spawn(f"more{place}.{next(self._count)}", place, self._meeting(), self._nnodes())

    def second_job(self, place: int) -> tuple[Agent, Path]:
        """Start an agent of another job. Returns the agent, and the path of a file whose creation makes it finish."""
        name = f"second{next(self._count)}"
        folder = self.folder / name
        folder.mkdir()
        own = {"CAMPAIGN_FOLDER": str(folder), "CAMPAIGN_HISTORY": str(folder / "history")}
        agent = self._spawn(name, place, self._meeting(name), "1", **own)
        agent.expected |= {0}
        return agent, folder / "finish"

    def is_away(self, place: int) -> bool:
        """Return whether the machine is off, or its node has not joined yet."""
        return place in self._away

    def goes_off(self, place: int) -> None:
        """Mark the machine as off, and its agents as lost."""
        self._away.add(place)
        for one in (other for other in self._running if other.place == place):
            self.loses(one, -signal.SIGKILL)

    def comes_back(self, place: int) -> None:
        """Mark the machine as on, and start an agent."""
        self._away.discard(place)
        self.start(place)

    def joins(self, place: int) -> None:
        """Start the agent of a place that was left out when the job started."""
        self._awaited += 1
        self.comes_back(place)

    def loses(self, agent: Agent, *codes: int) -> None:
        """Mark the agent as lost, so that it is not restarted automatically. It may exit with these codes."""
        agent.expected |= set(codes)
        agent.lost = True

    def may_end(self, agent: Agent | None, *codes: int) -> None:
        """Allow these exit codes, without marking the agent as lost."""
        if agent is not None:
            agent.expected |= set(codes)

    def keeps(self, agent: Agent) -> None:
        """Undo `loses` for an agent that is still running."""
        agent.lost = agent.over

    def replaces(self, agent: Agent) -> None:
        """Start a new agent in place of this one, unless one has already been started."""
        if self._agents[agent.place] is agent:
            self.start(agent.place)

    def spoils(self, place: int) -> None:
        """Mark the disk as unwritable. An agent that has to write to it may exit with code 2."""
        self._spoilt.append(place)
        for one in (other for other in self._running if other.place == place):
            self.may_end(one, 2)

    def heals(self, place: int) -> None:
        """Undo `spoils`."""
        self._spoilt.remove(place)  # one entry per fault, because faults may overlap

    def sets_clock(self, place: int, seconds: int) -> None:
        """Make the machine's wall clock wrong by this many seconds; 0 corrects it."""
        with self._clock(place).open("r+b") as file:  # written in place, because processes have mapped the file
            file.write(struct.pack("=q", seconds))

    def finish(self, stay: str = "") -> None:
        """Let all workers finish successfully. If `stay` contains the name of a node and a number of seconds, separated
        by a space, only this node finishes immediately. The other nodes continue for that number of seconds."""
        if stay:
            (self.folder / "stay").write_text(stay)
        self.finishing = True
        (self.folder / "finish").touch()

    def member(self, place: int) -> int | None:
        """Return the process ID of an etcd member, which a server or an agent runs, or None if it is not running."""
        if not self.setting.servers:
            return self.helper(place, "/etcd --name")
        return self._servers[place].pid if self._servers[place].poll() is None else None

    def member_again(self, place: int, pid: int) -> None:
        """Restart a server that a fault has ended, unless it has already been restarted after another fault."""
        server = self._servers[place]
        if server.pid == pid:
            server.send_signal(signal.SIGCONT)  # another fault may have suspended it before it could end
            server.wait()
            self._start_server(place)

    def worker(self, place: int) -> int | None:
        """Return the process ID of the running worker of this place, or None if there is none."""
        agent = self._agents.get(place)
        mine = [pid for pid, node in self.seen.running().items() if agent and node == agent.name]
        return mine[-1] if mine else None

    def helper(self, place: int, words: str) -> int | None:
        """Return the process ID of the agent's newest descendant whose command line contains `words`, or None."""
        agent = self._agents.get(place)
        if agent is None or agent.over:
            return None
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(agent.process.pid).children(recursive=True)
            for child in reversed(found):  # newest first, because a keeper's command line includes that of its child
                with contextlib.suppress(psutil.Error):
                    if words in " ".join(child.cmdline()):
                        return child.pid
        return None

    def agent(self, place: int) -> Agent | None:
        """Return the agent of this place, or None if it has exited."""
        agent = self._agents.get(place)
        return None if agent is None or agent.over else agent

    def ask(self, place: int, command: str, *more: str) -> subprocess.Popen[bytes]:
        """Start another `elastic` command on the machine."""
        at = [f"--rdzv-endpoint={self.setting.looked_at}"] if self.setting.looked_at else []
        words = [*self._through(place), sys.executable, "-m", "elastic_core", command, *self._meeting(), *at, *more]
        with (self.folder / f"{command}.log").open("ab") as file:
            made = subprocess.Popen(words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    env=self._environment(place))  # fmt: skip
        self._commands.append(made)
        return made


def _marked(record: Path) -> list[psutil.Process]:
    """Return the job's processes, identified by the history file in their environment."""
    return [process for process in psutil.process_iter()
            if _environment_of(process).get("CAMPAIGN_HISTORY") == str(record) and lives(process.pid)]  # fmt: skip


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def mount(*words: str) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *words], check=True, capture_output=True)


def unmount(path: Path) -> bool:
    """Unmount `path`. Returns whether a file system was mounted there."""
    return subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True).returncode == 0

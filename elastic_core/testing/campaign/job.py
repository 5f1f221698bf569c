"""Runs a job through a storm, with real agents and workers, and gives back the history.

The agents are started as users start them, each on a machine of its own where there are name spaces, else all on this
one. Whoever is gone is started anew, as a scheduler does. All is done in one thread, a look every `LOOK_S`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from elastic_core.testing.campaign.history import Event, History
from elastic_core.testing.campaign.storm import KINDS, Fault, Storm, Wave

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elastic_core.testing.machines import Machine

LOOK_S = 0.02
FORM_S = 90.0
FINISH_S = 60.0
END_S = 20.0
STEADY_S = 1.5
"""Within which a job makes a step, also on a busy machine."""
WORKER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("worker.py")))
"""The command of the cheap worker: without site-packages, which would cost more than all else that it does."""

DISK_BYTES = 512 * 2**20
WORKER_MEMORY = 64 * 2**20
_GROUPS = Path("/sys/fs/cgroup/memory")


def now() -> float:
    """Seconds since boot, as the workers write them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Server:
    """A process of the store that is no agent's, such as a member of an etcd: `command`, on this machine if on one."""

    command: Sequence[str]
    machine: Machine | None = None


@dataclass(frozen=True)
class Setting:
    """A job of a campaign.

    Args:
        backend: where the nodes meet, with `endpoint`, and `conf`, which becomes `--rdzv-conf`.
        nodes: how many the job takes; each has one worker. More than half of them may go on alone, unless `fixed`.
        secret: the file that becomes `--rdzv-secret-file`.
        flags: more of `elastic run`; `own` gives those of one place.
        launcher: the command instead of `elastic run`.
        worker: what the nodes run; it writes the events of `history`.
        machines: one for each node, and then others; without them all run here.
        servers: of the store, which stand before the nodes come.
        have: what is there of what kinds of faults need, besides what follows from the rest.
        looked_at: the endpoint for `status` and `drain`, where the nodes are given none.
        ready: whether the store is whole again, which is asked before the next wave.
        left: tells what is left in the store at the end, a line each.
        limit_s: within which the job has to be whole again, in seconds.
    """

    backend: str
    endpoint: str
    nodes: int = 3
    conf: Mapping[str, str] = field(default_factory=dict)
    looked_at: str = ""
    secret: str = ""
    flags: Sequence[str] = ()
    own: Callable[[int], Sequence[str]] = lambda place: ()
    fixed: bool = False
    launcher: Sequence[str] = (sys.executable, "-m", "elastic_core", "run")
    worker: Sequence[str] = ("--no-python", *WORKER)
    machines: Sequence[Machine] = ()
    servers: Sequence[Server] = ()
    have: frozenset[str] = frozenset({"elastic"})
    ready: Callable[[], bool] = lambda: True
    left: Callable[[], Sequence[str]] = lambda: ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 90.0

    @property
    def there(self) -> frozenset[str]:
        """For which kinds of faults there is what they need."""
        found = set(self.have)
        if self.machines:
            found |= {"machines"}
            found |= {"nft"} if shutil.which("nft") else set()
        found |= {"cc"} if shutil.which("cc") else set()
        found |= {"members"} if self.servers else set()
        found |= {"memory"} if os.access(_GROUPS, os.W_OK) else set()
        return frozenset(found)


class _Seen:
    """What the workers have written so far."""

    def __init__(self) -> None:
        self._starts: list[Event] = []
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._ended: set[int] = set()

    def take(self, event: Event) -> None:
        """One more event."""
        what, pid, at = event["what"], event.get("pid", 0), event["at"]
        if what == "start":
            self._starts.append(event)
        elif what == "step":
            self._first.setdefault(pid, at)
            self._last[pid] = at
        elif what == "end":
            self._ended.add(pid)

    def running(self) -> dict[int, str]:
        """The workers that live, by process id: the names of their nodes."""
        of_late = {event["pid"]: event["node"] for event in self._starts[-200:] if event["pid"] not in self._ended}
        return {pid: node for pid, node in of_late.items() if _lives(pid)}

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
        return self._last[pids[0]], max(self._first[pid] for pid in pids.values())


@dataclass
class _Agent:
    """One that was started."""

    name: str
    place: int
    process: subprocess.Popen[bytes]
    said: Path
    expected: set[int] = field(default_factory=set)
    lost: bool = False
    over: bool = False


class Job:
    """One job and its storm. `run` may be called once; whatever it started is gone when it returns.

    Args:
        setting: of the job.
        folder: an empty one, for all that is written.
        run_id: of the job.
    """

    def __init__(self, setting: Setting, folder: Path, run_id: str = "campaign") -> None:
        self._setting, self._folder, self._id = setting, folder, run_id
        self._there = setting.there
        self._record = folder / "history"
        self._read = 0
        self._seen = _Seen()
        self._agents: dict[int, _Agent] = {}
        self._running: list[_Agent] = []
        self._ended: list[_Agent] = []
        self._servers: list[subprocess.Popen[bytes]] = []
        self._commands: list[subprocess.Popen[bytes]] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._open: set[tuple[int, int]] = set()
        self._wave = -1
        self._finishing = False
        self._away: set[int] = set()
        self._spoilt: set[int] = set()  # places whose disks take nothing
        self._jumps: list[tuple[int, float, float, int]] = []  # of wall clocks: place, from, until, by how much
        self._missed = False

    # -- what is written down, and read

    def _tell(self, what: str, **more: Any) -> None:
        line = json.dumps({"at": now(), "wall": time.time(), "what": what, **more})
        with self._record.open("a") as file:
            file.write(line + "\n")

    def _look(self) -> None:
        """Read what is new, do what is due, and see who has ended."""
        if self._record.exists():
            with self._record.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            for line in whole.splitlines():
                event = json.loads(line)
                self._seen.take(event)
                self._missed |= event["what"] == "fault" and event["number"] == self._wave and event["missed"]
        while self._due and self._due[0][0] <= now():
            heapq.heappop(self._due)[2]()
        for agent in [one for one in self._running if one.process.poll() is not None]:
            self._saw_end(agent)
        self._commands = [one for one in self._commands if one.poll() is None]

    def _saw_end(self, agent: _Agent) -> None:
        agent.over = True
        self._running.remove(agent)
        self._ended.append(agent)
        last = agent.said.read_text(errors="replace").strip().splitlines()[-1:]
        expected = sorted(agent.expected) if not self._finishing else sorted({0, *agent.expected})
        self._tell("agent ended", node=agent.name, place=agent.place, pid=agent.process.pid,
                   code=agent.process.returncode, expected=expected, last="".join(last)[-400:])  # fmt: skip
        mine = self._agents.get(agent.place) is agent
        if mine and not agent.lost and not self._finishing:
            self._later(1.0, lambda: self._start(agent.place))  # a scheduler would, too

    def _until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        deadline = now() + limit_s
        while True:
            self._look()
            if condition():
                return True
            if now() > deadline:
                return False
            time.sleep(LOOK_S)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (now() + seconds, next(self._count), do))

    # -- agents

    def _machine(self, place: int) -> Machine | None:
        return self._setting.machines[place] if self._setting.machines else None

    def _disk(self, place: int) -> Path:
        return self._folder / "disks" / str(place)

    def _clock(self, place: int) -> Path:
        return self._folder / f"clock{place}"

    def _environment(self, place: int, **more: str) -> dict[str, str]:
        machine = self._machine(place)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "PET_"))}
        own = dict(machine.environment) if machine else {"ELASTIC_LOCAL_ADDR": "127.0.0.1"}
        if {"clock", "cc"} <= self._there:
            own |= {"LD_PRELOAD": str(self._folder / "clock.so"), "CAMPAIGN_CLOCK": str(self._clock(place))}
        told = {"CAMPAIGN_HISTORY": str(self._record), "CAMPAIGN_FOLDER": str(self._folder)}
        return {**kept, "TMPDIR": str(self._disk(place)), **own, **told, **self._setting.environment, **more}

    def _through(self, place: int) -> list[str]:
        machine = self._machine(place)
        return machine.through if machine else []

    def _meeting(self, run_id: str = "") -> list[str]:
        conf = ",".join(f"{name}={value}" for name, value in self._setting.conf.items())
        where = [f"--rdzv-backend={self._setting.backend}", f"--rdzv-id={run_id or self._id}"]
        where += [f"--rdzv-endpoint={self._setting.endpoint}"] if self._setting.endpoint else []
        where += [f"--rdzv-secret-file={self._setting.secret}"] if self._setting.secret else []
        return [*where, *([f"--rdzv-conf={conf}"] if conf else [])]

    def _spawn(self, name: str, place: int, meeting: Sequence[str], nnodes: str, **more: str) -> _Agent:
        own = [f"--nnodes={nnodes}", "--max-restarts=1000000", *self._setting.flags, *self._setting.own(place)]
        if "elastic" in self._setting.have:
            own += [f"--node-id={name}", "--log-format=json"]
        command = [*self._through(place), *self._setting.launcher, *meeting, *own, *self._setting.worker]
        said = self._folder / f"{name}.log"
        with said.open("ab") as file:
            process = subprocess.Popen(command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                       env=self._environment(place, CAMPAIGN_NODE=name, **more))  # fmt: skip
        self._tell("agent", node=name, place=place, pid=process.pid)
        self._running.append(_Agent(name, place, process, said, {2} if place in self._spoilt else set()))
        return self._running[-1]

    def _nnodes(self) -> str:
        count = self._setting.nodes
        return str(count) if self._setting.fixed else f"{count // 2 + 1}:{count}"

    def _start(self, place: int) -> None:
        if place in self._away or self._finishing:
            return
        name = f"n{place}.{next(self._count)}"
        self._agents[place] = self._spawn(name, place, self._meeting(), self._nnodes())

    def _start_server(self, number: int) -> None:
        server = self._setting.servers[number]
        through = server.machine.through if server.machine else []
        quiet = subprocess.DEVNULL
        with (self._folder / f"server{number}.log").open("ab") as log:
            process = subprocess.Popen([*through, *server.command], cwd=self._folder, stdin=quiet, stdout=log,
                                       stderr=log)  # fmt: skip
        self._servers[number : number + 1] = [process]

    def _worker(self, place: int) -> int | None:
        agent = self._agents.get(place)
        mine = [pid for pid, node in self._seen.running().items() if agent and node == agent.name]
        return mine[-1] if mine else None

    def _helper(self, place: int, words: str) -> int | None:
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

    # -- the job

    def run(self, storm: Storm) -> History:
        """Form, live through the storm, finish. Raises nothing for what the job does wrong: that is in the history."""
        try:
            self._set_up()
            for wave in storm:
                if not self._through_wave(wave):
                    break
            self._finish()
        finally:
            self._tear_down()
        self._read_logs()
        history = History.read(self._record)
        self._record.unlink()
        history.write(self._folder / "history.jsonl")
        return history

    def _set_up(self) -> None:
        disks = self._folder / "disks"
        disks.mkdir()
        if self._setting.machines:  # shared, so that what is mounted later is seen where agents run
            _mount("--make-shared", "-t", "tmpfs", "-o", "size=1m", "none", str(disks))
        for place in range(self._setting.nodes):
            self._disk(place).mkdir()
            if self._setting.machines:
                _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(self._disk(place)))
        if {"clock", "cc"} <= self._there:
            source = Path(__file__).with_name("clock.c")
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._folder / "clock.so", source], check=True)
            for place in range(self._setting.nodes):
                self._clock(place).write_bytes(bytes(8))
        for number in range(len(self._setting.servers)):
            self._start_server(number)
        for place in range(self._setting.nodes):
            self._start(place)
        if not self._until(lambda: self._whole(0.0, 0.0) is not None, FORM_S):
            self._tell("not formed", limit_s=FORM_S, why=self._why())
        self._hold()

    def _whole(self, since: float, begun: float) -> tuple[float, float] | None:
        nodes = {agent.name for agent in self._agents.values() if not agent.over}
        return self._seen.whole(nodes, since, begun) if len(nodes) == self._setting.nodes else None

    def _through_wave(self, wave: Wave) -> bool:
        """Whether the job was whole again in time."""
        self._wave, self._missed = self._wave + 1, False
        begun = now()
        self._tell("wave", number=self._wave, faults=[asdict(fault) for fault in wave.faults], quiet_s=wave.quiet_s)
        self._open = {(self._wave, number) for number in range(len(wave.faults))}
        for number, fault in enumerate(wave.faults):
            self._later(fault.after_s, lambda number=number, fault=fault: self._strike(number, fault))  # type: ignore[misc]
        longest = max(fault.after_s + fault.lasts_s for fault in wave.faults)
        self._until(lambda: not self._open, longest + END_S)
        if self._finishing:
            return False
        over = now()
        least = begun if wave.rounds[0] and not self._missed else 0.0
        if not self._settled(over, least, wave.linger_s):
            self._tell("not whole", number=self._wave, limit_s=self._setting.limit_s, why=self._why())
            return False
        found = self._whole(over, least)
        assert found is not None
        at, first = found
        new = first > begun
        self._tell("whole", number=self._wave, alive=sorted(self._seen.running()),
                   recovery_s=max(0.0, first - begun) if new else 0.0,
                   healed_s=max(0.0, max(first if new else at, over) - over))  # fmt: skip
        if self._wave == 0:
            self._hold()
        self._until(lambda: False, wave.quiet_s)
        return True

    def _settled(self, over: float, least: float, linger_s: float) -> bool:
        """Wait until all nodes train, and go on to where consequences may be on their way, and the store is whole."""
        deadline = over + linger_s + self._setting.limit_s
        if not self._until(lambda: self._whole(over, least) is not None, deadline - now()):
            return False
        self._until(lambda: False, over + linger_s - now())
        while now() < deadline:
            trains = self._until(lambda: self._whole(now() - STEADY_S, least) is not None, deadline - now())
            steady = not linger_s or not self._until(lambda: self._whole(now() - STEADY_S, least) is None, STEADY_S)
            if trains and steady and self._setting.ready():
                return True
        return False

    def _why(self) -> str:
        """What the agents said last."""
        said = []
        for agent in self._agents.values():
            lines = agent.said.read_text(errors="replace").strip().splitlines()[-3:]
            said.append(f"{agent.name} ({'ended' if agent.over else 'runs'}): {' | '.join(lines)}")
        return " || ".join(said)[-3000:]

    def _hold(self) -> None:
        """What the agents have that were there all the time."""
        for agent in self._agents.values():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(agent.process.pid)
                self._tell("holds", node=agent.name, pid=agent.process.pid, files=process.num_fds(),
                           threads=process.num_threads(), memory=process.memory_info().rss)  # fmt: skip

    def _finish(self) -> None:
        self._hold()
        self._finishing = True
        self._tell("finish")
        (self._folder / "finish").touch()
        if self._until(lambda: not self._running, FINISH_S):
            self._tell("finished")
        else:
            self._tell("not finished", limit_s=FINISH_S, why=self._why())

    def _tear_down(self) -> None:
        """End what still runs, and tell what should not."""
        for agent in self._running:
            agent.process.kill()
            agent.process.wait()
        self._ended += self._running
        for group in _GROUPS.glob(f"elastic-campaign-{os.getpid()}-*"):
            with contextlib.suppress(OSError):
                group.rmdir()
        deadline = now() + END_S  # leases of agents that were killed end by themselves
        while (stored := self._setting.left()) and now() < deadline:
            time.sleep(1.0)
        for line in stored:
            self._tell("left", kind="store", name=line, place=-1)
        for started in [*self._servers, *self._commands]:
            started.kill()
            started.wait()
        deadline = now() + END_S
        while (mine := _marked(self._record)) and now() < deadline:
            time.sleep(LOOK_S)
        for process in mine:
            with contextlib.suppress(psutil.Error):
                self._tell("left", kind="process", name=" ".join(process.cmdline())[:200], place=-1)
                process.kill()
        for place in range(self._setting.nodes):
            for path in self._disk(place).glob("elastic*") if self._disk(place).is_dir() else ():
                self._tell("left", kind="file", name=str(path.relative_to(self._folder)), place=place)
        if self._setting.machines:
            for place in range(self._setting.nodes):
                while _unmount(self._disk(place)):
                    pass
            _unmount(self._folder / "disks")

    def _read_logs(self) -> None:
        """The agents' own lines, with their times on the clock of all others."""
        offset = time.time() - now()
        for agent in self._ended:
            for line in agent.said.read_bytes().splitlines():
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    said = json.loads(line)
                    at = self._right(agent.place, _seconds(said.pop("timestamp")) - offset)
                    with self._record.open("a") as file:
                        file.write(json.dumps({**said, "at": at, "what": "told", "node": agent.name}) + "\n")

    def _right(self, place: int, at: float) -> float:
        """A time that was read from the wall clock there, which may have been wrong."""
        meant = (at - by for where, begun, over, by in self._jumps if where == place and begun <= at - by <= over)
        return next(meant, at)

    # -- faults

    def _strike(self, number: int, fault: Fault) -> None:
        """Do it, and write down what it struck."""
        wave = self._wave
        over = False

        def end() -> None:
            nonlocal over
            if not over:
                over = True
                self._tell("fault over", number=wave, fault=number)
                self._open.discard((wave, number))

        pid = getattr(self, f"_{fault.kind}")(fault, end)
        self._tell("fault", number=wave, fault=number, kind=fault.kind, place=fault.place, pid=pid, missed=pid is None)
        if pid is None:
            end()

    def _send(self, pid: int | None, signum: signal.Signals, end: Callable[[], None] | None = None) -> int | None:
        if pid is not None:
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                pid = None
        if end:
            end()
        return pid

    def _pause(self, pid: int | None, fault: Fault, end: Callable[[], None]) -> int | None:
        def go_on() -> None:
            self._send(pid, signal.SIGCONT)
            end()

        self._later(fault.lasts_s, go_on)
        return self._send(pid, signal.SIGSTOP)

    def _worker_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._worker(fault.place), signal.SIGKILL, end)

    def _worker_term(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._worker(fault.place), signal.SIGTERM, end)

    def _worker_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._worker(fault.place), fault, end)

    def _worker_memory(self, fault: Fault, end: Callable[[], None]) -> int | None:
        pid = self._worker(fault.place)
        group = _GROUPS / f"elastic-campaign-{os.getpid()}-{next(self._count)}"
        if pid is None:
            return None
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(WORKER_MEMORY))
        (group / "cgroup.procs").write_text(str(pid))

        def gone() -> None:
            if _lives(pid):
                self._later(0.1, gone)
                return
            try:
                group.rmdir()
            except OSError:  # the kernel has not let go of it yet
                self._later(0.1, gone)
            else:
                end()

        self._later(0.1, gone)
        return self._send(pid, signal.SIGUSR1)

    def _agent(self, place: int) -> _Agent | None:
        agent = self._agents.get(place)
        return None if agent is None or agent.over else agent

    def _lose(self, fault: Fault, end: Callable[[], None], signum: signal.Signals) -> int | None:
        """An agent that goes, and after a while another one that comes."""
        agent = self._agent(fault.place)
        if agent is None:
            return None
        agent.expected |= {-signum, 128 + signum}
        agent.lost = True
        if signum == signal.SIGTERM and "elastic" not in self._setting.have:
            agent.expected |= {1}
        self._send(agent.process.pid, signum)
        self._when_gone(agent, fault, end)
        return agent.process.pid

    def _when_gone(self, agent: _Agent, fault: Fault, end: Callable[[], None]) -> None:
        def again() -> None:
            if self._agents[fault.place] is agent:
                self._start(fault.place)
            end()

        def look() -> None:
            if agent.over:
                self._later(fault.lasts_s, again)
            else:
                self._later(LOOK_S, look)

        look()

    def _agent_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lose(fault, end, signal.SIGKILL)

    def _agent_term(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lose(fault, end, signal.SIGTERM)

    def _agent_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        agent = self._agent(fault.place)
        return self._pause(agent.process.pid, fault, end) if agent else None

    def _guardian_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._helper(fault.place, "sessions.py"), signal.SIGKILL, end)

    def _guardian_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._helper(fault.place, "sessions.py"), fault, end)

    def _template_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._helper(fault.place, "elastic: template"), signal.SIGKILL, end)

    def _template_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._helper(fault.place, "elastic: template"), fault, end)

    def _member(self, place: int) -> int | None:
        if not self._setting.servers:
            return self._helper(place, "/etcd --name")
        return self._servers[place].pid if self._servers[place].poll() is None else None

    def _member_ends(self, fault: Fault, end: Callable[[], None], signum: signal.Signals) -> int | None:
        pid = self._send(self._member(fault.place), signum)
        if pid is None or not self._setting.servers:
            end()
            return pid

        def again() -> None:
            self._servers[fault.place].wait()
            self._start_server(fault.place)
            end()

        self._later(fault.lasts_s, again)
        return pid

    def _member_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._member_ends(fault, end, signal.SIGKILL)

    def _member_term(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._member_ends(fault, end, signal.SIGTERM)

    def _keeper_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._send(self._helper(fault.place, "keeper.py"), signal.SIGKILL, end)

    def _member_stop(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._pause(self._member(fault.place), fault, end)

    def _machine_empty(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._machine_off(fault, end, empty=True)

    def _machine_off(self, fault: Fault, end: Callable[[], None], empty: bool = False) -> int | None:
        machine, agent = self._machine(fault.place), self._agent(fault.place)
        if machine is None or agent is None:
            return None
        for one in (other for other in self._running if other.place == fault.place):
            one.expected |= {-signal.SIGKILL}
            one.lost = True
        self._away.add(fault.place)
        machine.off()

        def on() -> None:
            self._away.discard(fault.place)
            machine.mend()
            for path in self._disk(fault.place).glob("*") if empty else ():
                shutil.rmtree(path, ignore_errors=True)
            self._start(fault.place)
            end()

        self._later(fault.lasts_s, on)
        return agent.process.pid

    def _link_cut(self, fault: Fault, end: Callable[[], None]) -> int | None:
        machine = self._machine(fault.place)
        if machine is None or fault.place in self._away:
            return None
        machine.cut()

        def mend() -> None:
            if fault.place not in self._away:
                machine.mend()
            end()

        self._later(fault.lasts_s, mend)
        return 0

    def _one_way(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lost_on_the_way(fault, end, both=False)

    def _lost_on_the_way(self, fault: Fault, end: Callable[[], None], both: bool) -> int | None:
        machine, other = self._machine(fault.place), self._machine(fault.other)
        if machine is None or other is None or machine is other:
            return None
        ways = [(machine, other), *([(other, machine)] if both else [])]
        for one, another in ways:
            one.loses(another)

        def mend() -> None:
            for one, another in ways:
                with contextlib.suppress(subprocess.CalledProcessError):  # another fault has ended it
                    one.finds(another)
            end()

        self._later(fault.lasts_s, mend)
        return 0

    def _for_a_while(
        self, fault: Fault, end: Callable[[], None], begin: str, *words: Any, over: Any = ()
    ) -> int | None:
        """Call a method of the machine, and when the fault is over again, with what ends it."""
        machine = self._machine(fault.place)
        if machine is None:
            return None
        getattr(machine, begin)(*words)

        def mend() -> None:
            getattr(machine, begin)(*over)
            end()

        self._later(fault.lasts_s, mend)
        return 0

    def _slow(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "shape", "tbf", "rate", "64kbit", "burst", "2kb", "latency", "5s")

    def _disorder(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "disorders", 4, over=(0,))

    def _narrow(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "shape", "tbf", "rate", "128kbit", "burst", "4kb", "limit", "8kb")

    def _lossy(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._for_a_while(fault, end, "drops", 10, over=(0,))

    def _apart(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._lost_on_the_way(fault, end, both=True)

    def _clock_jump(self, fault: Fault, end: Callable[[], None]) -> int | None:
        seconds = int(10 ** (2 * fault.lasts_s))  # from some to a million
        self._set_clock(fault.place, seconds if fault.other % 2 else -seconds)

        begun = now()

        def mend() -> None:
            self._set_clock(fault.place, 0)
            self._jumps.append((fault.place, begun, now(), seconds if fault.other % 2 else -seconds))
            end()

        self._later(fault.lasts_s, mend)
        return 0

    def _set_clock(self, place: int, seconds: int) -> None:
        with self._clock(place).open("r+b") as file:  # in its place: it is mapped
            file.write(struct.pack("=q", seconds))

    def _names(self, fault: Fault, end: Callable[[], None], resolver: str) -> int | None:
        machine = self._machine(fault.place)
        known = machine.names() if machine else ()
        return self._for_a_while(fault, end, "name", "", resolver, over=known)

    def _names_fail(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._names(fault, end, "127.0.0.1")  # where nobody listens

    def _names_stall(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._names(fault, end, "10.97.0.250")  # nobody's address

    def _spoil(self, fault: Fault, end: Callable[[], None], mend: Callable[[], object]) -> int:
        """A disk takes nothing for a while. An agent that has to write says so, and ends with 2."""
        agent = self._agent(fault.place)
        if agent:
            agent.expected |= {2}
        self._spoilt.add(fault.place)

        def over() -> None:
            try:
                mend()
            except OSError:  # while it is read-only
                self._later(LOOK_S, over)
                return
            self._spoilt.discard(fault.place)
            end()

        self._later(fault.lasts_s, over)
        return 0

    def _disk_full(self, fault: Fault, end: Callable[[], None]) -> int | None:
        filler = self._disk(fault.place) / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(2**20))
                file.flush()
        return self._spoil(fault, end, lambda: filler.unlink(missing_ok=True))

    def _disk_read_only(self, fault: Fault, end: Callable[[], None]) -> int | None:
        _mount("-t", "tmpfs", "-o", "ro,size=4k", "none", str(self._disk(fault.place)))
        return self._spoil(fault, end, lambda: _unmount(self._disk(fault.place)))

    def _descriptors(self, fault: Fault, end: Callable[[], None]) -> int | None:
        agent = self._agent(fault.place)
        if agent is None or self._worker(fault.place) is None:  # torch breaks where its import can open no file
            return None
        pid = agent.process.pid
        agent.expected |= {2}  # which says that it can open no file, should it have to start a worker
        try:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds(), before[1]))
        except (psutil.Error, OSError):
            return None

        def mend() -> None:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            end()

        self._later(fault.lasts_s, mend)
        return pid

    def _newcomer(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._spare(fault, end, signal.SIGTERM)

    def _spare_kill(self, fault: Fault, end: Callable[[], None]) -> int | None:
        return self._spare(fault, end, signal.SIGKILL)

    def _spare(self, fault: Fault, end: Callable[[], None], signum: signal.Signals) -> int | None:
        if fault.place in self._away:
            return None
        name = f"more{fault.place}.{next(self._count)}"
        agent = self._spawn(name, fault.place, self._meeting(), self._nnodes())

        def go() -> None:
            agent.expected |= {-signum, 128 + signum}
            self._send(None if agent.over else agent.process.pid, signum)
            gone()

        def gone() -> None:
            if agent.over:
                end()
            else:
                self._later(LOOK_S, gone)

        self._later(fault.lasts_s, go)
        return agent.process.pid

    def _ask(self, place: int, command: str, *more: str) -> subprocess.Popen[bytes]:
        """Another command of ours, there."""
        at = [f"--rdzv-endpoint={self._setting.looked_at}"] if self._setting.looked_at else []
        words = [*self._through(place), sys.executable, "-m", "elastic_core", command, *self._meeting(), *at, *more]
        with (self._folder / f"{command}.log").open("ab") as file:
            made = subprocess.Popen(words, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                    env=self._environment(place))  # fmt: skip
        self._commands.append(made)
        return made

    def _drain(self, fault: Fault, end: Callable[[], None]) -> int | None:
        agent = self._agent(fault.place)
        if agent is None or fault.other in self._away:
            return None
        agent.expected |= {9}
        agent.lost = True
        asked = self._ask(fault.other, "drain", agent.name)

        def look() -> None:
            if agent.over:
                self._when_gone(agent, fault, end)
            elif asked.poll() not in (None, 0):  # another fault was in its way, or the store has gone with the node
                agent.lost = agent.over
                end()
            else:
                self._later(LOOK_S, look)

        look()
        return agent.process.pid

    def _done(self, fault: Fault, end: Callable[[], None]) -> int | None:
        """The job finishes, and all nodes but this one take longer."""
        agent = self._agent(fault.place)
        if agent is None:
            return None
        (self._folder / "stay").write_text(f"{agent.name} {fault.lasts_s}")
        self._finishing = True
        (self._folder / "finish").touch()
        self._later(fault.lasts_s, end)
        return agent.process.pid

    def _second_job(self, fault: Fault, end: Callable[[], None]) -> int | None:
        if fault.place in self._away:
            return None
        name = f"second{next(self._count)}"
        folder = self._folder / name
        folder.mkdir()
        own = {"CAMPAIGN_FOLDER": str(folder), "CAMPAIGN_HISTORY": str(folder / "history")}
        agent = self._spawn(name, fault.place, self._meeting(name), "1", **own)
        agent.expected |= {0}
        self._later(fault.lasts_s, (folder / "finish").touch)

        def gone() -> None:
            if agent.over:
                end()
            else:
                self._later(LOOK_S, gone)

        gone()
        return agent.process.pid

    def _status(self, fault: Fault, end: Callable[[], None]) -> int | None:
        if fault.place in self._away:
            return None
        until = now() + fault.lasts_s
        asked = self._ask(fault.place, "status", "--json")

        def look() -> None:
            nonlocal asked
            if asked.poll() is None:
                self._later(LOOK_S, look)
            elif now() < until and fault.place not in self._away:
                asked = self._ask(fault.place, "status", "--json")
                self._later(LOOK_S, look)
            else:
                end()

        look()
        return asked.pid


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _marked(record: Path) -> list[psutil.Process]:
    """Processes of the job: they have the file of its history in their environment."""
    return [process for process in psutil.process_iter()
            if _environment_of(process).get("CAMPAIGN_HISTORY") == str(record) and _lives(process.pid)]  # fmt: skip


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def _seconds(timestamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def _unmount(path: Path) -> bool:
    return subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True).returncode == 0


def kinds_of(setting: Setting) -> list[str]:
    """The kinds of faults that can be done to it."""
    there = setting.there
    return [name for name, kind in KINDS.items() if there.issuperset(kind.needs)]

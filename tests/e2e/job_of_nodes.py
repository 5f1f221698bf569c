"""A job of several nodes on this machine: one agent per node, and workers that record what they see and end on request.

Each worker appends one line to a common file. Workers of the same round have the same MASTER_PORT, which is new in
every round. No test synchronizes by sleeping; all waits poll a condition until a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elastic_core.support.sockets import PortReservation

LONG = 180.0
SOON = {"keep_alive_max_attempt": "30"}
"""For jobs in which a node or the store becomes silent: peers notice it after 9 seconds instead of 30. It is not
shorter, so that a stalled test machine does not make a node look lost."""

_MOST_HELD = 100
_held: deque[PortReservation] = deque()

# Without torch, so that only agents have to import it. Ends when a file exists, with the exit code in that file.
WORKER = """
import json, os, pathlib, sys, time

node = sys.argv[1]
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
         "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
         "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")
line = json.dumps({**{name: os.environ[name] for name in names}, "node": node, "pid": os.getpid(), "saw": SAW}) + "\\n"
records = os.open("records", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(records, line.encode())
ends = [pathlib.Path("end"), pathlib.Path("end-" + node)]


def requested_end():
    for path in ends:
        if path.exists():
            code, _, words = path.read_text().partition(" ")
            if words:
                print(words, file=sys.stderr)
            return int(code)
    return None
"""

# No worker ends before all workers of the round have written; otherwise some would miss a round that fails immediately.
SLEEPER = (
    WORKER.replace("SAW", "None")
    + """
def all_have_written():
    whole, _, _ = pathlib.Path("records").read_text().rpartition("\\n")  # the last line may be on its way
    lines = [json.loads(line) for line in whole.splitlines()]
    ports = [line["MASTER_PORT"] for line in lines]
    return ports.count(os.environ["MASTER_PORT"]) >= int(os.environ["WORLD_SIZE"])


while not all_have_written():
    time.sleep(0.02)
while (code := requested_end()) is None:
    time.sleep(0.02)
sys.exit(code)
"""
)

# Trains in step with all ranks and writes its line after the first step, when every rank has taken part. Exits without
# finalizing Python: a gloo thread that still releases the last tensor would wait for the interpreter, which ends such
# threads; in C++ that is an abort ("terminate called without an active exception").
TRAINER = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def step(over):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    flags = torch.tensor([over, 1.0])
    dist.all_reduce(flags)
    return flags.tolist()


seen = int(step(0.0)[1])
""" + (
    WORKER.replace("SAW", "seen")
    + """
while not step(float(requested_end() is not None))[0]:
    time.sleep(0.02)
dist.destroy_process_group()
os._exit(0)
"""
)


def eventually(condition: Callable[[], object], what: str, timeout: float = LONG) -> object:
    """Returns the condition's value once it is true. Raises AssertionError with `what` after the timeout."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"expected within {timeout} s: {what}"
        time.sleep(0.02)
    return value


def free_port() -> int:
    """A port at which nothing listens. It stays reserved for a while, so that no other program gets it."""
    _held.append(PortReservation())
    if len(_held) > _MOST_HELD:
        _held.popleft().release()
    return _held[-1].port


class Agent:
    """A running command, whose output goes to files that can be read at any time."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.name = name
        self.process = process
        self._folder = folder

    @property
    def out(self) -> str:
        return (self._folder / f"{self.name}.out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self._folder / f"{self.name}.err").read_text(errors="replace")

    @property
    def report(self) -> str:
        """The report at the end of stderr."""
        found = self.err.find("\nelastic: ")
        assert found >= 0, f"expected a report of {self.name}, found:\n{self.err}"
        return self.err[found:]

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def says(self, text: str, timeout: float = LONG) -> None:
        """Wait until stderr contains the text."""

        def said() -> bool:
            ended = not self.runs  # checked first, because its last output is read after that
            assert text in self.err or not ended, f"{self.name} ended without saying {text!r}:\n{self.err}"
            return text in self.err

        eventually(said, f"{self.name} says {text!r}", timeout)

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def code(self, timeout: float = LONG) -> int:
        """Wait for the end of the process. Returns its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout} s:\n{self.err}") from None


@dataclass(frozen=True)
class Round:
    """The lines of the workers of one round, in rank order."""

    port: str
    lines: tuple[dict[str, object], ...]

    def all(self, name: str) -> list[object]:
        """The workers' values of this field, in rank order."""
        return [line[name] for line in self.lines]

    def of(self, node: str) -> list[dict[str, object]]:
        return [line for line in self.lines if line["node"] == node]

    def pid(self, node: str) -> int:
        """The process id of the node's first worker."""
        return int(str(self.of(node)[0]["pid"]))

    @property
    def nodes(self) -> list[str]:
        """The nodes, in rank order."""
        return list(dict.fromkeys(str(line["node"]) for line in self.lines))

    @property
    def restarts(self) -> set[object]:
        """The workers' restart counts. More than one means that they disagree."""
        return set(self.all("TORCHELASTIC_RESTART_COUNT"))


class Job:
    """One job. `start` is `Elastic.start_to_files`.

    Args:
        endpoint: of an existing store. Without one, an agent or `serve` hosts the store.
    """

    def __init__(
        self,
        start: Callable[..., subprocess.Popen[bytes]],
        folder: Path,
        backend: str = "c10d",
        endpoint: str = "",
        **conf: str,
    ) -> None:
        self._start = start
        self._folder = folder
        self.backend = backend
        self.port = free_port()
        self.endpoint = endpoint or f"127.0.0.1:{self.port}"
        self.sleeper = self._script("sleeper.py", SLEEPER)
        self.trainer = self._script("trainer.py", TRAINER)
        self.conf = {"last_call_timeout": "0.2", "keep_alive_interval": "0.3", "keep_alive_max_attempt": "100", **conf}

    @property
    def where(self) -> tuple[str, ...]:
        """The flags with which a command finds the job."""
        flags = (f"--rdzv-endpoint={self.endpoint}", f"--rdzv-backend={self.backend}", "--rdzv-id=job")
        return (*flags, f"--rdzv-conf=prefix={self.conf['prefix']}") if "prefix" in self.conf else flags

    @property
    def _conf(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.conf.items())

    def agent(self, name: str, *flags: str, script: str | None = None, **environment: str) -> Agent:
        """Start a node with this name. If a flag is given twice, the later one applies."""
        own = (f"--node-id={name}", f"--rdzv-conf={self._conf}")
        run = ("run", *self.where, *own, *flags, script or self.sleeper, name)
        return self.command(name, *run, **environment)

    def static_agent(self, name: str, rank: int, *flags: str) -> Agent:
        """Start the node with this rank, as torchrun users without a rendezvous do."""
        own = ("--rdzv-backend=static", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--node-id={name}")
        return self.command(name, "run", *own, f"--rdzv-conf={self._conf}", *flags, self.sleeper, name)

    def agents(self, names: str, *flags: str, **more: str) -> list[Agent]:
        """Start agents with these names, one after another."""
        return [self.agent(name, *flags, **more) for name in names.split()]

    def command(self, name: str, *args: str, **environment: str) -> Agent:
        """Start any elastic command, or a program."""
        return Agent(name, self._start(name, *args, **environment), self._folder)

    def serve(self, name: str = "store") -> Agent:
        """Start the store in a separate process at the job's endpoint."""
        server = self.command(name, "serve", f"--rdzv-endpoint={self.endpoint}")
        server.says("store served")
        return server

    def end(self, node: str = "", code: int = 0, words: str = "") -> None:
        """Ask the workers of one node, or of all, to end."""
        path = self._folder / (f"end-{node}" if node else "end")
        unfinished = self._folder / "unfinished"
        unfinished.write_text(f"{code} {words}".strip())
        unfinished.replace(path)

    def ends_well(self, *agents: Agent) -> None:
        """Ask all workers to end, and check that these agents then succeed."""
        self.end()
        assert [agent.code() for agent in agents] == [0] * len(agents)

    def rounds(self) -> list[Round]:
        """All rounds whose workers have written their lines, in order."""
        path = self._folder / "records"
        whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")  # the last may be incomplete
        lines = [json.loads(line) for line in whole.splitlines()]
        ports = dict.fromkeys(str(line["MASTER_PORT"]) for line in lines)
        return [_round(port, lines) for port in ports]

    def round(self, size: int, after: Round | None = None, timeout: float = LONG) -> Round:
        """Wait for a round of `size` workers that formed after `after` and in which all workers have written."""

        def found() -> Round | None:
            rounds = self.rounds()
            ports = [found.port for found in rounds]
            newer = rounds[ports.index(after.port) + 1 :] if after else rounds
            whole = [r for r in newer if len(r.lines) == size and set(r.all("WORLD_SIZE")) == {str(size)}]
            return whole[-1] if whole else None

        try:
            return eventually(found, f"a round of {size} workers", timeout)  # type: ignore[return-value]
        except AssertionError as error:
            logs = "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self._folder.glob("*.err")))
            raise AssertionError(f"{error}, found {[r.lines for r in self.rounds()]}\n{logs}") from None

    def _script(self, name: str, code: str) -> str:
        path = self._folder / name
        path.write_text(code)
        return str(path)


def _round(port: str, lines: list[dict[str, object]]) -> Round:
    mine = [line for line in lines if line["MASTER_PORT"] == port]
    return Round(port, tuple(sorted(mine, key=lambda line: int(str(line["RANK"])))))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kill_node(agent: Agent, worker: int) -> None:
    """Kill the agent and its worker. The worker may already have ended with its agent."""
    agent.process.kill()
    with contextlib.suppress(ProcessLookupError):
        kill(worker)


def lives(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"

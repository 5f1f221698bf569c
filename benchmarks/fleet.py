"""A store and many agents that use it, as threads of a few processes. There are no workers and no launcher."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from benchmarks.job import ENVIRONMENT, WORKERS, BenchmarkError
from benchmarks.processes import STOP_LIMIT_S, cpu_seconds

PROCESSES = 8
START_LIMIT_S = 180.0
ANSWER_LIMIT_S = 30.0
# Delay between the order to join and the joins, so that the order reaches every process in time.
HEAD_START_S = 0.5
# The script that serves a launcher's store, if that is not a TCPStore.
STORES = {"elastic-etcd": "etcd_server.py"}


class Helper:
    """A script of `workers/` that answers each line of input with a line. Made by `helping`."""

    def __init__(self, arguments: Sequence[str], errors: TextIO) -> None:
        self._errors = errors
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**ENVIRONMENT, **os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, question: Mapping[str, Any]) -> None:
        """Send one line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` reports why it has exited
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()

    def answer(self, deadline: float) -> Any:
        """The next line, as JSON; `deadline` is an instant of time.monotonic."""
        line = None
        with suppress(queue.Empty):
            line = self._lines.get(timeout=max(0.0, deadline - monotonic()))
            if line is not None:
                return json.loads(line)
        what = "did not answer in time" if self.process.poll() is None else "has exited"
        raise BenchmarkError(f"a process of agents or of the store {what}.\n{self._last_errors()}")

    def _last_errors(self) -> str:
        return "\n".join(Path(self._errors.name).read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """Close the script's input, which makes it exit. Kill it if it keeps running."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(ANSWER_LIMIT_S / 10)
            return
        self.process.kill()
        self.process.wait(STOP_LIMIT_S)


@contextmanager
def helping(commands: Sequence[Sequence[str]]) -> Iterator[list[Helper]]:
    """Start scripts, and stop them at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="elastic-benchmark-") as folder:
        helpers: list[Helper] = []
        try:
            for number, command in enumerate(commands):
                with (Path(folder) / f"{number}.err").open("w") as errors:
                    helpers.append(Helper(command, errors))
            yield helpers
        finally:
            for helper in helpers:
                helper.stop()


@dataclass(frozen=True)
class Joined:
    """The result of all joins.

    Args:
        seconds: from the start of the first join to the return of the last.
        errors: of the agents that did not join; empty if all joined and agree on members and ranks.
    """

    seconds: float
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """Payload on the TCP connections of all agents.

    Args:
        connections: number of connections to the rendezvous store.
        requests: requests to it, counted as segments with payload (see workers/traffic.py).
        up, down: bytes to it and from it.
        other: bytes on all other connections.
    """

    connections: int = 0
    requests: int = 0
    up: int = 0
    down: int = 0
    other: int = 0


@dataclass
class Fleet:
    """Agents of one launcher that are ready to join. Made by `fleet`."""

    nodes: int
    port: int
    store: Helper
    agents: list[Helper]

    def _ask(self, question: Mapping[str, Any], limit_s: float) -> list[Any]:
        for helper in self.agents:
            helper.ask(question)
        deadline = monotonic() + limit_s
        return [helper.answer(deadline) for helper in self.agents]

    def join(self, limit_s: float) -> Joined:
        """Let all agents join together. Raises BenchmarkError if a join neither succeeds nor fails within `limit_s`.

        Results are read only after all have finished, because reading them would slow down agents that still join."""
        self._ask({"join": monotonic() + HEAD_START_S}, limit_s + HEAD_START_S)
        answers = self._ask({"joined": True}, ANSWER_LIMIT_S)
        return verdict([agent for answer in answers for agent in answer["agents"]], self.nodes)

    def follow(self) -> int:
        """Let the agents act as they do while workers run. Returns the number of agents that poll."""
        return sum(answer["polled"] for answer in self._ask({"follow": True}, ANSWER_LIMIT_S))

    def ended(self) -> list[str]:
        """The reason of each agent whose round has ended. For elastic-core only."""
        return [reason for answer in self._ask({"ended": True}, ANSWER_LIMIT_S) for reason in answer["ended"]]

    def look(self) -> list[dict[str, dict[str, int]]]:
        """The kernel's counters so far, for each process, by connection."""
        return [answer["connections"] for answer in self._ask({"traffic": True}, ANSWER_LIMIT_S)]

    def cpu(self) -> tuple[float, float]:
        """Processor seconds so far, of the store and of all agents."""
        return cpu_seconds(self.store.process.pid), sum(cpu_seconds(helper.process.pid) for helper in self.agents)


def verdict(agents: Sequence[Mapping[str, Any]], nodes: int) -> Joined:
    """Whether all have joined one round and agree on it."""
    seconds = max(agent["end"] for agent in agents) - min(agent["start"] for agent in agents)
    if errors := sorted({agent["error"] for agent in agents if agent["error"]}):
        refused = sum(bool(agent["error"]) for agent in agents)
        return Joined(seconds, (f"{refused} of {nodes} did not join", *errors[:3]))
    if sorted(agent["rank"] for agent in agents) != list(range(nodes)):
        return Joined(seconds, (f"ranks are not 0 to {nodes - 1}",))
    if {agent["world_size"] for agent in agents} != {nodes}:
        return Joined(seconds, (f"world sizes are not all {nodes}",))
    if len({agent["members"] for agent in agents}) != 1:
        return Joined(seconds, ("the members are not the same for all",))
    return Joined(seconds)


def traffic_between(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], port: int) -> Traffic:
    """Return the traffic between two readings. The traffic of a connection that was closed in between is lost. The
    traffic of a new connection is counted completely."""
    found = Traffic()
    for earlier, later in zip(before, after, strict=True):
        for name, now in later.items():
            found = _plus(found, earlier.get(name, {}), now, now["peer_port"] == port)
    return found


def _plus(total: Traffic, before: Mapping[str, int], now: Mapping[str, int], to_store: bool) -> Traffic:
    sent, received, requests = (now[name] - before.get(name, 0) for name in ("sent", "received", "requests"))
    if not to_store:  # both ends belong to agents, so the sender's count is enough
        return Traffic(total.connections, total.requests, total.up, total.down, total.other + sent)
    return Traffic(
        total.connections + 1, total.requests + requests, total.up + sent, total.down + received, total.other
    )


def shares(nodes: int) -> list[tuple[int, int]]:
    """The first number and the count of agents for each process. No process is empty."""
    used = min(nodes, PROCESSES)
    bounds = [nodes * number // used for number in range(used + 1)]
    return [(first, end - first) for first, end in itertools.pairwise(bounds)]


@contextmanager
def fleet(launcher: str, nodes: int, join_timeout_s: int, conf: str = "", apart: bool = False) -> Iterator[Fleet]:
    """A store, and `nodes` agents with min = max = `nodes`, with connected handlers. The agents are threads in several
    processes, or each in its own process if `apart` is true. `conf` has options of elastic-core's rendezvous, as in
    --rdzv-conf."""
    run_id = uuid.uuid4().hex[:12]
    with helping([[str(WORKERS / STORES.get(launcher, "store_server.py"))]]) as [store]:
        port = int(store.answer(monotonic() + START_LIMIT_S))
        common = [str(WORKERS / "agents.py"), launcher, str(port), run_id, str(nodes)]
        more = [str(join_timeout_s), "FORKS" if apart else "THREADS", *([conf] if conf else [])]
        commands = [[*common, str(first), str(count), *more] for first, count in shares(nodes)]
        with helping(commands) as agents:
            deadline = monotonic() + START_LIMIT_S
            for helper in agents:
                helper.answer(deadline)
            yield Fleet(nodes, port, store, agents)

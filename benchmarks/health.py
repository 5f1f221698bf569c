"""Can clients of the health endpoint hurt the job? One agent with two workers that do nothing, of which one is killed
again and again: in quiet, and while 200 slow clients hold connections and malformed requests come as fast as they are
let, 10,000 of them.

- from the kill until both workers of the next round say that they run;
- the same as the agent tells it: what it took to notice, stop, agree and start;
- how long a probe waits for its answer meanwhile.

Quiet and attack take turns, so that a change in the machine's load hits both. The clients are processes of their own
and share this machine's processors with the agent, which is part of the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.job import WORKERS, BenchmarkError, Job, launchers, running
from benchmarks.processes import now
from benchmarks.report import Report, Row, main, median, parser

LIMIT_S = 30.0
TARGET_RATIO = 1.2
TARGET_PROBE_S = 1.0  # what Kubernetes waits for
SAY = "echo runs $$ $TORCHELASTIC_RESTART_COUNT; exec sleep 100000"


@dataclass
class Tries:
    """What was measured under one condition, in seconds. `told`: by the agent."""

    seen: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--blocks", type=int, default=5, help="turns of quiet and of attack (5)")
    made.add_argument("--tries", type=int, default=20, help="kills in a turn of quiet (20)")
    made.add_argument("--slow", type=int, default=200, help="slow clients (200)")
    made.add_argument("--malformed", type=int, default=10_000, help="malformed requests in all (10000)")
    made.add_argument("--pause", type=float, default=0.25, help="seconds between two kills (0.25)")
    return made


def free_port() -> int:
    """One that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(port: int, path: str) -> bytes:
    """What the endpoint answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        body: bytes = answer.read()
    return body


def next_round(job: Job) -> tuple[list[int], float]:
    """The process ids of both workers, and when the second one said that it runs."""
    pids, at = [], 0.0
    for _ in range(2):
        line = job.wait_line(lambda text: text.startswith("runs "), now() + LIMIT_S)
        if line is None:
            raise BenchmarkError(f"no new round after {LIMIT_S:.0f} s.\n{''.join(job.output[-30:])}")
        pids.append(int(line.text.split()[1]))
        at = line.at
    return pids, at


class Victim:
    """The job."""

    def __init__(self, job: Job, port: int) -> None:
        self._job = job
        self._port = port
        self._pids, _ = next_round(job)

    def lose_a_worker(self, tries: Tries, pause: float) -> None:
        """One kill; measured into `tries`."""
        time.sleep(pause)
        killed = now()
        os.kill(self._pids[0], signal.SIGKILL)
        self._pids, at = next_round(self._job)
        tries.seen.append(at - killed)
        begun = now()
        ask(self._port, "/livez")
        tries.probes.append(now() - begun)

    def told(self, count: int) -> list[float]:
        """The last recoveries, as the agent tells them."""
        status: dict[str, Any] = json.loads(ask(self._port, "/status"))
        return [recovery["total"] for recovery in status["recoveries"][-count:]] if count else []


class Attack:
    """Slow clients and malformed requests, until the block is left."""

    def __init__(self, port: int, slow: int) -> None:
        self.sent = 0
        self._slow = self._start("slow", str(port), str(slow))
        self._malformed = self._start("malformed", str(port))
        self._counting = threading.Thread(target=self._count, daemon=True)

    @contextmanager
    def under_way(self) -> Iterator[Attack]:
        with self._slow, self._malformed, ExitStack() as stack:
            for process in (self._slow, self._malformed):
                stack.callback(process.kill)
                assert process.stdout is not None
                process.stdout.readline()
            self._counting.start()
            yield self
        self._counting.join(LIMIT_S)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(WORKERS / "hostile.py"), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _count(self) -> None:
        assert self._malformed.stdout is not None
        for _ in self._malformed.stdout:
            self.sent += 100


def turns(victim: Victim, port: int, arguments: argparse.Namespace) -> tuple[Tries, Tries, int]:
    """Quiet and attack in turn; and how many malformed requests there were."""
    quiet, attacked, sent = Tries(), Tries(), 0
    for _ in range(arguments.blocks):
        for _ in range(arguments.tries):
            victim.lose_a_worker(quiet, arguments.pause)
        quiet.told += victim.told(arguments.tries)
        before = len(attacked.seen)
        with Attack(port, arguments.slow).under_way() as attack:
            while attack.sent < arguments.malformed / arguments.blocks:
                victim.lose_a_worker(attacked, arguments.pause)
            attacked.told += victim.told(len(attacked.seen) - before)
        sent += attack.sent
    return quiet, attacked, sent


def rows(quiet: Tries, attacked: Tries, sent: int) -> list[Row]:
    """The table."""
    found = []
    for what, before, after in (
        ("worker killed: both of the next round run", quiet.seen, attacked.seen),
        ("the same, as the agent tells it", quiet.told, attacked.told),
    ):
        calm, under = median(before), median(after)
        ratio = under / calm if calm and under else None
        found += [
            Row(f"{what}, quiet", "s", {"elastic": calm}),
            Row(f"{what}, under attack", "s", {"elastic": under}),
            Row(
                "- ratio of the two",
                "",
                {"elastic": ratio},
                f"<= {TARGET_RATIO:g}",
                met=None if ratio is None else ratio <= TARGET_RATIO,
            ),
        ]
    slowest = max(attacked.probes, default=None)
    met = None if slowest is None else slowest < TARGET_PROBE_S
    return [
        *found,
        Row("probe answered, quiet, median", "s", {"elastic": median(quiet.probes)}),
        Row("probe answered, under attack, median", "s", {"elastic": median(attacked.probes)}),
        Row("probe answered, under attack, slowest", "s", {"elastic": slowest}, f"< {TARGET_PROBE_S:g}", met=met),
        Row("malformed requests", "", {"elastic": float(sent)}),
    ]


def measure(arguments: argparse.Namespace) -> Report:
    """One job for all of it; torchrun's endpoint answers nobody, so there is nothing beside it."""
    command = launchers(argparse.Namespace(launchers="elastic"))["elastic"]
    port = free_port()
    flags = ("--nproc-per-node=2", "--max-restarts=100000", f"--health-port={port}", "--no-python")
    with running([*command, *flags, "sh", "-c", SAY]) as job:
        quiet, attacked, sent = turns(Victim(job, port), port, arguments)
    report = Report("health", {"slow clients": arguments.slow, "kills": f"{len(quiet.seen)} + {len(attacked.seen)}"})
    report.rows = rows(quiet, attacked, sent)
    report.measurements = {
        name: {"seen_s": tries.seen, "told_s": tries.told, "probes_s": tries.probes}
        for name, tries in (("quiet", quiet), ("attacked", attacked))
    }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

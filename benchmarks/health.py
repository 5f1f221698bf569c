"""Can clients of the health endpoint slow down the job?

An agent runs two idle workers, one of which is killed repeatedly: without load, and while 200 slow clients hold
connections and 10,000 malformed requests arrive as fast as they are accepted. The benchmark measures:

- the time from the kill until both workers of the next round report that they run;
- the same as the agent measures it: the time to notice, stop, agree and start;
- how long a probe waits for its answer.

Quiet and attack take turns, so that a change in the machine's load affects both. The clients are separate processes
that share this machine's processors with the agent, which is part of the figure.
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
TARGET_PROBE_S = 1.0  # Kubernetes' default timeout of a probe
SAY = "echo runs $$ $TORCHELASTIC_RESTART_COUNT; exec sleep 100000"


@dataclass
class Tries:
    """Times under one condition, in seconds. `reported`: as the agent measures them."""

    seen: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--blocks", type=int, default=5, help="periods without load and under attack (5)")
    made.add_argument("--tries", type=int, default=20, help="kills in a period without load (20)")
    made.add_argument("--slow", type=int, default=200, help="slow clients (200)")
    made.add_argument("--malformed", type=int, default=10_000, help="total number of malformed requests (10000)")
    made.add_argument("--pause", type=float, default=0.25, help="seconds between two kills (0.25)")
    return made


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(port: int, path: str) -> bytes:
    """The endpoint's response."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        body: bytes = answer.read()
    return body


def next_round(job: Job) -> tuple[list[int], float]:
    """Return both workers' process ids, and the time at which the second worker reported that it runs."""
    pids, at = [], 0.0
    for _ in range(2):
        line = job.wait_line(lambda text: text.startswith("runs "), now() + LIMIT_S)
        if line is None:
            raise BenchmarkError(f"no new round after {LIMIT_S:.0f} s.\n{''.join(job.output[-30:])}")
        pids.append(int(line.text.split()[1]))
        at = line.at
    return pids, at


class Victim:
    """The job whose workers are killed."""

    def __init__(self, job: Job, port: int) -> None:
        self._job = job
        self._port = port
        self._pids, _ = next_round(job)

    def lose_a_worker(self, tries: Tries, pause: float) -> None:
        """Kill a worker, and add the times to `tries`."""
        time.sleep(pause)
        killed = now()
        os.kill(self._pids[0], signal.SIGKILL)
        self._pids, at = next_round(self._job)
        tries.seen.append(at - killed)
        begun = now()
        ask(self._port, "/livez")
        tries.probes.append(now() - begun)

    def reported(self, count: int) -> list[float]:
        """The durations of the last recoveries, as the agent measures them."""
        status: dict[str, Any] = json.loads(ask(self._port, "/status"))
        return [recovery["total"] for recovery in status["recoveries"][-count:]] if count else []


class Attack:
    """Slow clients and malformed requests, until the end of the block."""

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
    """Measure without load and under attack in turn. Returns the number of malformed requests, too."""
    quiet, attacked, sent = Tries(), Tries(), 0
    for _ in range(arguments.blocks):
        for _ in range(arguments.tries):
            victim.lose_a_worker(quiet, arguments.pause)
        quiet.reported += victim.reported(arguments.tries)
        before = len(attacked.seen)
        with Attack(port, arguments.slow).under_way() as attack:
            while attack.sent < arguments.malformed / arguments.blocks:
                victim.lose_a_worker(attacked, arguments.pause)
            attacked.reported += victim.reported(len(attacked.seen) - before)
        sent += attack.sent
    return quiet, attacked, sent


def rows(quiet: Tries, attacked: Tries, sent: int) -> list[Row]:
    """The rows of the table."""
    found = []
    for what, before, after in (
        ("worker killed: both of the next round run", quiet.seen, attacked.seen),
        ("the same, as the agent measures it", quiet.reported, attacked.reported),
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
    """Measure everything with one job. There is no comparison, because torchrun's endpoint answers no requests."""
    command = launchers(argparse.Namespace(launchers="elastic"))["elastic"]
    port = free_port()
    flags = ("--nproc-per-node=2", "--max-restarts=100000", f"--health-port={port}", "--no-python")
    with running([*command, *flags, "sh", "-c", SAY]) as job:
        quiet, attacked, sent = turns(Victim(job, port), port, arguments)
    report = Report("health", {"slow clients": arguments.slow, "kills": f"{len(quiet.seen)} + {len(attacked.seen)}"})
    report.rows = rows(quiet, attacked, sent)
    report.measurements = {
        name: {"seen_s": tries.seen, "told_s": tries.reported, "probes_s": tries.probes}
        for name, tries in (("quiet", quiet), ("attacked", attacked))
    }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

"""What does a watchdog timer cost a worker? Workers enter and leave an empty `with expires(...)`. Measured are:

- the round trip (acquire and release) of one worker, and of several workers at the same time without pauses;
- whether the server received every request.

The server runs in this process, as in an agent; the workers are separate processes. Both launchers are used through
their public names, except that torch's request count is read from a private attribute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.job import WORKERS, BenchmarkError, launchers
from benchmarks.processes import now
from benchmarks.report import Report, Row, main, median, parser

LIMIT_S = 120.0
LOOK_S = 1.0
WARM_UP = 2
"""Requests of each worker that are left out of the figures."""

TARGET_US = 50.0


@dataclass
class Run:
    """Measurements of several workers that ran at the same time.

    Args:
        took: microseconds of each round trip of each worker.
        lost: requests that the server did not receive.
        errors: errors of workers that failed before they were done.
        seconds: from the first to the last round trip of all workers.
    """

    took: list[list[float]] = field(default_factory=list)
    lost: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def sorted(self) -> list[float]:
        """All round trips, shortest first."""
        return sorted(each for worker in self.took for each in worker)

    def slowest_median(self) -> float | None:
        """The median of the slowest worker."""
        return max((median(worker) or 0.0 for worker in self.took), default=None)

    def p99(self) -> float | None:
        """The 99th percentile of all round trips."""
        ordered = self.sorted()
        return ordered[len(ordered) * 99 // 100] if ordered else None


Runs = Mapping[str, Sequence[Run]]
"""Runs by launcher."""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--workers", type=int, default=8, help="workers at the same time (8)")
    made.add_argument("--count", type=int, default=10_000, help="round trips of each worker (10000)")
    made.add_argument("--runs", type=int, default=10, help="tries of each launcher (10)")
    return made


@contextmanager
def serving(launcher: str, pipe: Path) -> Iterator[Callable[[], int]]:
    """Run a server during the block. Yields a function that returns the number of requests received."""
    server: Any
    if launcher == "elastic":
        from elastic_file_timer import FileTimerServer

        server = FileTimerServer(str(pipe), "", LOOK_S)
        count = lambda: server.taken  # noqa: E731
    else:
        from torch.distributed.elastic.timer import FileTimerServer

        server = FileTimerServer(str(pipe), "", LOOK_S)
        count = lambda: server._request_count  # noqa: E731
    server.start()
    try:
        yield count
    finally:
        server.stop()


def start_worker(launcher: str, pipe: Path, count: int, stack: ExitStack) -> subprocess.Popen[str]:
    """Start a worker, which waits for the order to begin."""
    command = [sys.executable, str(WORKERS / "timer.py"), launcher, str(pipe), str(count)]
    worker = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    )
    stack.callback(worker.kill)
    return worker


def run(launcher: str, workers: int, count: int) -> Run:
    """Run several workers at the same time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        pipe = Path(folder, "timers")
        got = stack.enter_context(serving(launcher, pipe))
        started = [start_worker(launcher, pipe, count, stack) for _ in range(workers)]
        for worker in started:
            if worker.stdout is None or worker.stdout.readline() != "ready\n":
                raise BenchmarkError(f"a worker of {launcher} did not start: {worker.wait(LIMIT_S)}")
        begun = now()
        for worker in started:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        outputs = [json.loads(worker.communicate(timeout=LIMIT_S)[0]) for worker in started]
        seconds = now() - begun
        took = [output["took"] for output in outputs]
        errors = [output["error"] for output in outputs if output["error"]]
        return Run(took, missing(got, sum(2 * len(each) + WARM_UP for each in took)), errors, seconds)


def missing(got: Callable[[], int], sent: int) -> int:
    """The number of requests that have not arrived after three turns of the server."""
    until = now() + 3 * LOOK_S
    while got() < sent and now() < until:
        time.sleep(0.01)
    return max(0, sent - got())


def row(what: str, unit: str, runs: Runs, figure: Callable[[Run], float | None], target: float | None = None) -> Row:
    """A row with one figure of each run, and the verdict for elastic-core."""
    found = {name: [value for each in of_one if (value := figure(each)) is not None] for name, of_one in runs.items()}
    words = "" if target is None else "none" if target == 0 else f"< {target:.0f}"
    made = {name: len(of_one) for name, of_one in runs.items()}
    row = Row.measured(what, unit, found, words, made=made, worst=min if unit == "1/s" else max)
    ours = row.values.get("elastic")
    row.met = None if target is None or ours is None else ours <= target
    return row


def rows(alone: Runs, together: Runs, workers: int) -> list[Row]:
    """The rows of the table."""
    failed = row("workers that failed", "", together, lambda each: float(len(each.errors)), 0)
    failed.notes = {
        name: errors[0] for name, of_one in together.items() if (errors := [e for each in of_one for e in each.errors])
    }
    return [
        row("round trip, one worker, median", "us", alone, Run.slowest_median, TARGET_US),
        row(f"round trip, {workers} workers, median", "us", together, lambda each: median(each.sorted()), TARGET_US),
        row("the same, of the slowest worker", "us", together, Run.slowest_median),
        row("the same, 99th percentile", "us", together, Run.p99),
        row("round trips of all workers", "1/s", together, rate),
        row("requests lost", "", together, lambda each: float(each.lost), 0),
        failed,
    ]


def rate(each: Run) -> float | None:
    """Round trips per second of all workers together."""
    return len(each.sorted()) / each.seconds if each.seconds else None


def measure(arguments: argparse.Namespace) -> Report:
    """Measure one worker, then several, alternating between the launchers."""
    names = list(launchers(arguments))
    alone: dict[str, list[Run]] = {name: [] for name in names}
    together: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(arguments.runs):
        for name in names:
            alone[name].append(run(name, 1, arguments.count))
            together[name].append(run(name, arguments.workers, arguments.count))
            print(f"{name} {number + 1}/{arguments.runs}", flush=True)
    report = Report("timer", {"workers": arguments.workers, "count": arguments.count})
    report.rows = rows(alone, together, arguments.workers)
    report.measurements = {
        name: [
            {"median_us": [median(worker) for worker in each.took], "lost": each.lost, "seconds": each.seconds}
            for each in of_one
        ]
        for name, of_one in together.items()
    }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

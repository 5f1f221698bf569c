"""What does the launcher itself cost? Two workers print a line and exit. The benchmark measures:

- wall time; the launchers alternate, so that a change in the machine's load affects both;
- peak memory of the agent's process, in separate runs, because watching takes time;
- whether torch was ever mapped into the agent;
- the time of `import elastic_core` in a fresh interpreter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from benchmarks.job import WORKERS, BenchmarkError, launchers, running
from benchmarks.processes import has_torch, now, peak_memory
from benchmarks.report import Report, Row, main, parser

LIMIT_S = 60.0
LOOK_EVERY_S = 0.002


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--runs", type=int, default=10, help="timed runs of each launcher (10)")
    made.add_argument("--memory-runs", type=int, default=10, help="runs of each launcher under observation (10)")
    made.add_argument("--import-runs", type=int, default=15, help="fresh interpreters that import elastic_core (15)")
    return made


def hello(launcher: Sequence[str]) -> list[str]:
    """The command to measure."""
    return [*launcher, "--nproc-per-node=2", str(WORKERS / "hello.py")]


def wall_time(launcher: Sequence[str]) -> float:
    """Seconds from the launcher's start to its exit. Raises BenchmarkError unless both workers printed their line."""
    with running(hello(launcher)) as job:
        code = job.wait_exit(now() + LIMIT_S)
        took = now() - job.started
        job.wait_output_end()
    output = "".join(job.output)
    if code != 0 or any(f"hello from rank {rank} of 2" not in output for rank in (0, 1)):
        raise BenchmarkError(f"the launcher exited with {code}.\n{output}")
    return took


def watched_run(launcher: Sequence[str]) -> tuple[float, bool]:
    """Peak memory of the agent in MiB, and whether torch was ever mapped into it.

    The peak only grows, so the last value read is the peak up to `LOOK_EVERY_S` before the end.
    """
    peak, torch_seen = 0.0, False
    with running(hello(launcher)) as job:
        while job.wait_exit(now() + LOOK_EVERY_S) is None:
            peak = max(peak, peak_memory(job.pid) or 0.0)
            torch_seen = torch_seen or has_torch(job.pid)
            if now() > job.started + LIMIT_S:
                raise BenchmarkError(f"still running after {LIMIT_S:.0f} s.\n{''.join(job.output)}")
    return peak, torch_seen


def import_time() -> float:
    """Milliseconds of `import elastic_core`, measured in a fresh interpreter."""
    measure = "from time import perf_counter as t; a = t(); import elastic_core; print((t() - a) * 1000)"
    with tempfile.TemporaryDirectory() as elsewhere:  # so that the installed package is found, not a checkout
        done = subprocess.run(
            [sys.executable, "-c", measure], cwd=elsewhere, capture_output=True, text=True, timeout=LIMIT_S
        )
    if done.returncode != 0:
        raise BenchmarkError(f"import elastic_core failed.\n{done.stderr}")
    return float(done.stdout)


def repeat(runs: int, measure: Callable[[], float]) -> list[float]:
    """Measure `runs` times, after a first run that only warms the file cache."""
    measure()
    return [measure() for _ in range(runs)]


def measure(arguments: argparse.Namespace) -> Report:
    """Measure all four."""
    commands = launchers(arguments)
    report = Report("hello", {"workers": 2})
    for command in commands.values():
        wall_time(command)  # warms the file cache; not counted
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.runs):
        for name, command in commands.items():
            times[name].append(wall_time(command))
            time.sleep(0.1)
    watched = {name: [watched_run(command) for _ in range(arguments.memory_runs)] for name, command in commands.items()}
    imports = repeat(arguments.import_runs, import_time) if "elastic" in commands else []
    peaks = {name: [peak for peak, _ in runs] for name, runs in watched.items()}
    with_torch = {name: [float(seen) for _, seen in runs] for name, runs in watched.items()}
    report.rows = [
        Row.measured("wall time", "s", times, "ratio <= 0.30"),
        Row.measured("peak memory of the agent", "MiB", peaks, "ratio <= 0.30"),
        Row(
            "torch mapped into the agent", "1: yes", {name: max(seen) for name, seen in with_torch.items()}, "elastic 0"
        ),
        Row.measured("import elastic_core", "ms", {"elastic": imports}, "< 50"),
    ]
    report.measurements = {"wall_s": times, "peak_mib": peaks, "torch_mapped": with_torch, "import_ms": imports}
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

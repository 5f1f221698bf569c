"""What do 64 workers on one machine cost? They only sleep, so only the launcher works. Measured are:

- the time from the launcher's start to the start of the last worker;
- processor time of the idle agent, in percent of one core;
- the time from SIGTERM to the agent until agent and workers have exited;
- the same for workers that ignore SIGTERM, with a grace period of `--grace` seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.job import BenchmarkError, Job, launchers, running
from benchmarks.processes import cpu_seconds, now, start_time, wait_gone
from benchmarks.report import Report, Row, main, parser

START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
SETTLE_S = 1.0

PLAIN = ("--no-python", "sleep", "1000")
# A signal that is ignored stays ignored across exec.
STUBBORN = ("--no-python", "sh", "-c", "trap '' TERM; exec sleep 1000")


@dataclass
class Observation:
    """Figures of one job. `cpu_percent` is None if it was not measured."""

    start_s: float
    cpu_percent: float | None
    stop_s: float


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--workers", type=int, default=64, help="workers on this machine (64)")
    made.add_argument("--runs", type=int, default=10, help="jobs of each launcher with each kind of workers (10)")
    made.add_argument("--steady-seconds", type=float, default=5.0, help="how long to watch the idle agent (5)")
    made.add_argument("--grace", type=int, default=5, help="--shutdown-timeout of the launchers, in seconds (5)")
    return made


def steady_cpu(job: Job, seconds: float) -> float:
    """Percent of a core that the agent uses while its workers sleep. The steps of 10 ms are 0.2 % over 5 s."""
    time.sleep(SETTLE_S)
    before, at = cpu_seconds(job.pid), now()
    time.sleep(seconds)
    return 100.0 * (cpu_seconds(job.pid) - before) / (now() - at)


def stop(job: Job, pids: Sequence[int]) -> float:
    """Send SIGTERM to the agent. Returns the seconds until it and all workers have exited."""
    at = now()
    os.kill(job.pid, signal.SIGTERM)
    if wait_gone([job.pid, *pids], STOP_LIMIT_S) is None:
        raise BenchmarkError(f"agent or workers still run {STOP_LIMIT_S:.0f} s after SIGTERM")
    return now() - at


def observe(launcher: Sequence[str], arguments: argparse.Namespace, worker: Sequence[str], steady: bool) -> Observation:
    """Run one job with workers of one kind."""
    command = [*launcher, f"--nproc-per-node={arguments.workers}", f"--shutdown-timeout={arguments.grace}", *worker]
    with running(command) as job:
        pids = list(job.wait_workers(arguments.workers, now() + START_LIMIT_S).values())
        started = max(start_time(pid) for pid in pids) - job.started
        cpu = steady_cpu(job, arguments.steady_seconds) if steady else None
        if not steady:
            time.sleep(SETTLE_S)  # until the last shell has set its trap
        return Observation(started, cpu, stop(job, pids))


def measure(arguments: argparse.Namespace) -> Report:
    """Measure both kinds of workers under each launcher, alternating."""
    commands = launchers(arguments)
    plain: dict[str, list[Observation]] = {name: [] for name in commands}
    stubborn: dict[str, list[Observation]] = {name: [] for name in commands}
    for _ in range(arguments.runs):
        for name, command in commands.items():
            plain[name].append(observe(command, arguments, PLAIN, steady=True))
            stubborn[name].append(observe(command, arguments, STUBBORN, steady=False))
    report = Report("many_workers", {"workers": arguments.workers, "grace": arguments.grace})
    starts = {name: [seen.start_s for seen in jobs] for name, jobs in plain.items()}
    cpu = {name: [seen.cpu_percent for seen in jobs if seen.cpu_percent is not None] for name, jobs in plain.items()}
    stops = {name: [seen.stop_s for seen in jobs] for name, jobs in plain.items()}
    stubborn_stops = {name: [seen.stop_s for seen in jobs] for name, jobs in stubborn.items()}
    report.rows = [
        Row.measured("all workers started after", "s", starts),
        Row.measured("agent, steady state", "% of a core", cpu),
        Row.measured("all exited after SIGTERM", "s", stops),
        Row.measured("all exited after SIGTERM that workers ignore", "s", stubborn_stops, f"<= {arguments.grace + 1}"),
    ]
    report.measurements = {
        "plain": {name: [asdict(seen) for seen in all_seen] for name, all_seen in plain.items()},
        "stubborn": {name: [asdict(seen) for seen in all_seen] for name, all_seen in stubborn.items()},
    }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

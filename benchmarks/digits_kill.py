"""Does a job recover when a worker is killed, and how soon?

1. `examples/digits/train.py` runs many times with two workers. In each run, a random worker gets SIGKILL at a random
   moment after the first epoch. A run has *recovered* if the launcher exits with 0 and the final accuracy is 95 % or
   more, *failed* if the launcher exits with another code, and *hung* if it still runs after `--limit` seconds.
2. Two workers only sleep. The survivor exits immediately, so only the launcher's part remains.

Both measure the time from the kill until the survivor has exited, and until the last new worker was started. The
kernel records start times in steps of 10 ms, rounded up here. Both launchers get the same seed, and thus the same
victims and moments.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.job import WORKERS, BenchmarkError, Job, launchers, running
from benchmarks.processes import now, start_time, wait_gone
from benchmarks.report import Report, Row, main, parser

TRAIN = Path(__file__).parents[1] / "examples" / "digits" / "train.py"
EPOCHS = 40
LAST_EPOCH_TO_KILL_AFTER = 30
GOOD_ENOUGH = 95.0
EPOCH_LINE = re.compile(r"epoch (\d+)/\d+ loss .* restart (\d+)")
NODE = ("--nproc-per-node=2", "--max-restarts=3")


@dataclass(frozen=True)
class Plan:
    """The worker to kill and the moment: an epoch's line plus a fraction of the duration of an epoch."""

    victim: int
    after_epoch: int
    fraction: float


@dataclass
class Restart:
    """Times in seconds after a kill. None means that the limit passed first."""

    survivor_gone_s: float | None = None
    workers_started_s: float | None = None
    next_epoch_s: float | None = None


@dataclass
class Run:
    """One run of the digits job. `restarts_used` is the count in the first epoch line after the kill, if there is one.

    `tail` is the end of the job's output, kept only if the run did not recover.
    """

    outcome: str
    plan: Plan
    restart: Restart
    restarts_used: int | None
    exit_code: int | None
    took_s: float
    tail: str


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--runs", type=int, default=20, help="runs of the digits job under each launcher (20)")
    made.add_argument("--sleeper-runs", type=int, default=10, help="jobs of sleeping workers for each launcher (10)")
    made.add_argument("--limit", type=float, default=60.0, help="seconds after which a run is considered hung (60)")
    made.add_argument("--seed", type=int, default=1, help="seed of victims and moments (1)")
    return made


def draw(seed: int, run: int) -> Plan:
    """Draw the plan of a run. It depends only on seed and number, so that both launchers get the same."""
    lot = random.Random(f"{seed}/{run}")
    return Plan(lot.randrange(2), lot.randint(1, LAST_EPOCH_TO_KILL_AFTER), lot.random())


def kill_and_time(job: Job, workers: Mapping[int, int], victim: int, deadline: float) -> tuple[float, Restart]:
    """Kill one of two workers. Returns the time of the kill, and the launcher's reaction."""
    survivor = workers[1 - victim]
    killed_at = now()
    os.kill(workers[victim], signal.SIGKILL)  # safe: it was just alive, so the launcher has not reaped it
    restart = Restart()
    gone = wait_gone([survivor], deadline - killed_at)
    if gone is not None:
        restart.survivor_gone_s = gone - killed_at
        with suppress(BenchmarkError):
            fresh = job.wait_workers(2, deadline, other_than=list(workers.values()))
            restart.workers_started_s = max(start_time(pid) for pid in fresh.values()) - killed_at
    return killed_at, restart


def wait_epoch(job: Job, deadline: float, epoch: int = 1, restart: int = 0) -> tuple[float, int] | None:
    """Wait for a line of this epoch and restart, or of later ones. Returns its time and its restart count."""

    def late_enough(text: str) -> bool:
        found = EPOCH_LINE.search(text)
        return found is not None and int(found[1]) >= epoch and int(found[2]) >= restart

    line = job.wait_line(late_enough, deadline)
    if line is None:
        return None
    found = EPOCH_LINE.search(line.text)
    assert found is not None
    return line.at, int(found[2])


def digits_run(launcher: Sequence[str], plan: Plan, limit_s: float) -> Run:
    """Start the job, kill a worker according to plan, and record the outcome."""
    job_arguments = ["--checkpoint", "digits.pt", "--metrics", "metrics.json", "--epochs", str(EPOCHS)]
    with running([*launcher, *NODE, str(TRAIN), *job_arguments]) as job:
        deadline = job.started + limit_s
        restart, restarts_used = Restart(), None
        if reach(job, plan, deadline):
            killed_at, restart = kill_and_time(job, job.wait_workers(2, deadline), plan.victim, deadline)
            if (back := wait_epoch(job, deadline, restart=1)) is not None:
                restart.next_epoch_s, restarts_used = back[0] - killed_at, back[1]
        code = job.wait_exit(deadline)
        outcome = judge(code, job.folder / "metrics.json")
        tail = "" if outcome == "recovered" else "".join(job.output[-40:])
        return Run(outcome, plan, restart, restarts_used, code, now() - job.started, tail)


def reach(job: Job, plan: Plan, deadline: float) -> bool:
    """Wait for the moment of the kill. Returns false if the job never reaches it, which is the launcher's failure."""
    first = wait_epoch(job, deadline)
    chosen = first if plan.after_epoch == 1 else wait_epoch(job, deadline, plan.after_epoch)
    if first is None or chosen is None:
        return False
    time.sleep(plan.fraction * (chosen[0] - first[0]) / max(1, plan.after_epoch - 1))
    return True


def judge(code: int | None, metrics: Path) -> str:
    """Classify the outcome of a run."""
    if code is None:
        return "hung"
    if code != 0 or not metrics.exists():
        return "failed"
    return "recovered" if json.loads(metrics.read_text())["accuracy"] >= GOOD_ENOUGH else "failed"


def sleeper_run(launcher: Sequence[str], victim: int, limit_s: float) -> Restart:
    """Kill one of two sleeping workers after both have run for a second."""
    with running([*launcher, *NODE, str(WORKERS / "sleeper.py")]) as job:
        deadline = job.started + limit_s
        workers = job.wait_workers(2, deadline)
        time.sleep(1.0)
        return kill_and_time(job, workers, victim, deadline)[1]


def narrate(name: str, number: int, of: int, run: Run) -> None:
    """Print a line per run, because fifty runs take minutes."""
    back = "no further epoch"
    if run.restart.next_epoch_s is not None:
        back = f"next epoch after {run.restart.next_epoch_s:.1f} s, restarts {run.restarts_used}"
    kill = f"rank {run.plan.victim} killed after epoch {run.plan.after_epoch}"
    print(f"{name} {number + 1}/{of}: {kill}: {run.outcome}, {back}", flush=True)


def present(values: Sequence[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def count(runs: Sequence[Run], outcome: str) -> int:
    """Number of runs with this outcome."""
    return sum(run.outcome == outcome for run in runs)


def outcomes(runs: Sequence[Run]) -> str:
    """Return the number of runs that did not recover, by outcome, or an empty string if all recovered."""
    return ", ".join(f"{many} {outcome}" for outcome in ("failed", "hung") if (many := count(runs, outcome)))


def percent(runs: Sequence[Run], outcome: str) -> float:
    """Percentage of runs with this outcome."""
    return 100.0 * count(runs, outcome) / len(runs)


def restart_rows(title: str, restarts: Mapping[str, Sequence[Restart]]) -> list[Row]:
    """Rows with the times after the kills."""
    made = {name: len(all_) for name, all_ in restarts.items()}
    gone = {name: present([seen.survivor_gone_s for seen in all_]) for name, all_ in restarts.items()}
    started = {name: present([seen.workers_started_s for seen in all_]) for name, all_ in restarts.items()}
    launcher_part = {
        name: [
            seen.workers_started_s - seen.survivor_gone_s
            for seen in all_
            if seen.workers_started_s is not None and seen.survivor_gone_s is not None
        ]
        for name, all_ in restarts.items()
    }
    return [
        Row.measured(f"{title}: kill to survivor's exit", "s", gone, made=made),
        Row.measured(f"{title}: kill to new workers' start", "s", started, made=made),
        Row.measured(f"{title}: survivor's exit to new workers' start", "s", launcher_part, "elastic < 0.1", made=made),
    ]


def measure(arguments: argparse.Namespace) -> Report:
    """Measure the sleeping workers first, because that is quick, and then the digits job."""
    commands = launchers(arguments)
    sleepers: dict[str, list[Restart]] = {name: [] for name in commands}
    for run in range(arguments.sleeper_runs):
        for name, command in commands.items():
            sleepers[name].append(sleeper_run(command, draw(arguments.seed, run).victim, arguments.limit))
    digits: dict[str, list[Run]] = {name: [] for name in commands}
    for run in range(arguments.runs):
        for name, command in commands.items():
            digits[name].append(digits_run(command, draw(arguments.seed, run), arguments.limit))
            narrate(name, run, arguments.runs, digits[name][-1])
    report = Report("digits_kill", {"limit": arguments.limit, "seed": arguments.seed})
    return summarise(report, digits, sleepers)


def summarise(report: Report, digits: Mapping[str, Sequence[Run]], sleepers: Mapping[str, Sequence[Restart]]) -> Report:
    """Add the table's rows, and each run for `--json`."""
    for outcome, target in (("recovered", "100"), ("failed", "0"), ("hung", "0")):
        share = {name: percent(runs, outcome) for name, runs in digits.items() if runs}
        notes = {name: f"{count(runs, outcome)} of {len(runs)}" for name, runs in digits.items()}
        report.rows.append(Row(f"digits: {outcome}", "% of runs", share, target, notes=notes))
    next_epoch = {name: present([run.restart.next_epoch_s for run in runs]) for name, runs in digits.items()}
    lost = {name: outcomes(runs) for name, runs in digits.items()}
    made = {name: len(runs) for name, runs in digits.items()}
    report.rows += [
        Row.measured("digits: kill to next epoch line", "s", next_epoch, made=made, notes=lost),
        *restart_rows("digits", {name: [run.restart for run in runs] for name, runs in digits.items()}),
        *restart_rows("sleepers", sleepers),
    ]
    report.measurements = {
        "digits": {name: [asdict(run) for run in runs] for name, runs in digits.items()},
        "sleepers": {name: [asdict(seen) for seen in all_] for name, all_ in sleepers.items()},
    }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

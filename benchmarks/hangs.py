"""Is a hung worker found, killed and replaced, and how soon?

Two workers of `workers/hanging.py` run on one node. Rank 1, which has a child process, hangs in one case inside a timer
(`expires`) that is not released, in the other in a script without timers, under `--hang-timeout`. Torchrun has only
timers. A try has *healed* if only rank 1 was killed, within a second of its deadline; the other worker got SIGTERM; the
next round succeeded; rank 1's stack is in the report; and no process of the job is left. The deadline of
`--hang-timeout` is the timeout itself, which is checked four times.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.job import WORKERS, Job, launchers
from benchmarks.processes import end_descendants, now, wait_gone
from benchmarks.report import Report, Row, main, parser

IN_TIME_S = 1.0
WAYS = {"timer": "a timer is not released", "progress": "no progress"}


@dataclass
class Try:
    """One job, in seconds after the hanging worker's deadline. `problem` is empty if the job healed."""

    problem: str = "no worker hung"
    killed_s: float | None = None
    back_s: float | None = None
    tail: str = ""


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--runs", type=int, default=20, help="tries of elastic for each case (20)")
    made.add_argument("--torchrun-runs", type=int, default=10, help="tries of torchrun (10)")
    made.add_argument("--after", type=float, default=2.0, help="seconds for the timer and --hang-timeout (2)")
    made.add_argument("--limit", type=float, default=60.0, help="seconds after which a try is abandoned (60)")
    return made


def command(launcher: str, words: Sequence[str], way: str, after: float) -> list[str]:
    """The command line of the job."""
    own = [*words, "--nproc-per-node=2", "--max-restarts=1"]
    if launcher == "elastic":
        own += ["--result-file=result.json"]
        own += ["--watchdog=file"] if way == "timer" else [f"--hang-timeout={after}", "--hang-warmup=0"]
    return [*own, str(WORKERS / "hanging.py"), launcher, way, str(after)]


def attempt(launcher: str, words: Sequence[str], way: str, after: float, limit_s: float) -> Try:
    """Run one job until it exits or reaches the limit."""
    timers = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"} if launcher == "torchrun" else {}
    with tempfile.TemporaryDirectory(prefix="elastic-benchmark-") as folder:
        job = Job(command(launcher, words, way, after), Path(folder), timers)
        try:
            made = follow(job, job.started + limit_s)
            judge(made, job, launcher == "elastic", job.wait_exit(job.started + limit_s))
        finally:
            job.stop()
            end_descendants()
            job.wait_output_end()
    if made.problem:
        made.tail = "".join(job.output[-30:])
    return made


def follow(job: Job, deadline: float) -> Try:
    """Watch the job until a worker of the next round runs."""
    made = Try()
    hangs = wait_fact(job, "hangs", deadline)
    if hangs is None:
        return made
    gone = wait_gone([int(hangs["hangs"])], deadline - now())
    if gone is None:
        made.problem = "the worker was not killed"
        return made
    made.killed_s, made.problem = gone - hangs["due"], "no next round"
    back = wait_fact(job, "runs", deadline)
    if back is not None:
        made.back_s, made.problem = back["at"] - hangs["due"], ""
    return made


def wait_fact(job: Job, name: str, deadline: float) -> dict[str, Any] | None:
    """The next line of a worker that has this fact. Lines about a worker's start are used only from the second
    round."""
    line = job.wait_line(lambda text: (f := fact(text)).get("round", 1) == 1 and name in f, deadline)
    return fact(line.text) if line else None


def fact(text: str) -> dict[str, Any]:
    """The facts in a worker's line of output."""
    return dict(json.loads(text)) if text.startswith("{") else {}


def in_time(made: Try) -> bool:
    """Whether the worker was killed within a second after its deadline."""
    return made.killed_s is not None and 0 <= made.killed_s <= IN_TIME_S


def judge(made: Try, job: Job, reports_stack: bool, code: int | None) -> None:
    """Set `problem` if the try has not healed."""
    children = psutil.Process().children(recursive=True)
    left = [child for child in children if child.pid != job.pid and child.status() != psutil.STATUS_ZOMBIE]
    facts = [fact(text) for text in job.output]
    terminated = sum("terminated" in one for one in facts)
    if not made.problem and code != 0:
        made.problem = f"exit code {code}"
    elif not made.problem and not in_time(made):
        made.problem = "killed too early or too late"
    elif not made.problem and terminated != 1:
        made.problem = "the other worker got no SIGTERM"
    elif not made.problem and left:
        made.problem = f"left behind: {left}"
    elif not made.problem and reports_stack and not has_stack(job.folder / "result.json"):
        made.problem = "no stack in the report"


def has_stack(result: Path) -> bool:
    """Whether the first failure is the hang, with its stack."""
    first = json.loads(result.read_text())["failures"][0]
    return first["reason"].startswith("hang: ") and " in hang_here" in first["stack"]


def note(tries: Sequence[Try]) -> str:
    """Return the number of tries that healed, and the problems of the other tries."""
    parts = [f"{sum(not one.problem for one in tries)} of {len(tries)} healed"]
    problems = [one.problem for one in tries if one.problem]
    parts += [f"{problems.count(problem)}: {problem}" for problem in sorted(set(problems))]
    return ", ".join(parts)


def seconds(tries: Mapping[str, Sequence[Try]], name: str) -> dict[str, list[float]]:
    """One kind of time, of the tries that have it."""
    return {who: [t for one in of_one if (t := getattr(one, name)) is not None] for who, of_one in tries.items()}


def rows(way: str, tries: Mapping[str, Sequence[Try]]) -> list[Row]:
    """Rows with the share of healed tries and their times."""
    share = {name: 100.0 * sum(not t.problem for t in of_one) / len(of_one) for name, of_one in tries.items() if of_one}
    killed, back = seconds(tries, "killed_s"), seconds(tries, "back_s")
    made = {name: len(of_one) for name, of_one in tries.items()}
    ours = share.get("elastic")
    return [
        Row(
            f"{WAYS[way]}: healed",
            "% of tries",
            share,
            "100",
            met=None if ours is None else ours == 100,
            notes={name: note(of_one) for name, of_one in tries.items()},
        ),
        Row.measured("- deadline to kill", "s", killed, f"< {IN_TIME_S:g}", made=made),
        Row.measured("- deadline to a worker of the next round", "s", back, made=made),
    ]


def measure(arguments: argparse.Namespace) -> Report:
    """Measure both cases, with one launcher after the other."""
    commands = launchers(arguments)
    report = Report("hangs", {"after": arguments.after, "limit": arguments.limit})
    for way in WAYS:
        tries: dict[str, list[Try]] = {}
        for name, words in commands.items():
            count = arguments.runs if name == "elastic" else arguments.torchrun_runs * (way == "timer")
            for number in range(count):
                made = attempt(name, words, way, arguments.after, arguments.limit)
                tries.setdefault(name, []).append(made)
                print(
                    f"{name} {way} {number + 1}/{count}: {made.problem or f'healed after {made.back_s:.2f} s'}",
                    flush=True,
                )
                print(made.tail, end="", flush=True)
        report.rows += rows(way, tries)
        report.measurements[way] = {name: [asdict(one) for one in of_one] for name, of_one in tries.items()}
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

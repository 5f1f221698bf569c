"""Are hanging workers on GPUs found?"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu.device import on
from benchmarks.hangs import fact, wait_fact
from benchmarks.job import WORKERS, Job, launcher_command
from benchmarks.processes import end_descendants, now
from benchmarks.report import Report, Row

HANG_S, NOTICE_S, END_LIMIT_S = 5.0, 15.0, 120.0
LOGS_S = 2 * HANG_S  # for which workers log their steps first, so that later silence is suspicious


@dataclass
class Found:
    """One job with a worker that stops.

    Args:
        problem: empty if a worker was killed for hanging and the next round succeeded.
        seconds: from the worker's stop to the start of a worker in the next round.
        blamed: the rank that was killed for hanging.
    """

    problem: str = ""
    seconds: float | None = None
    blamed: int | None = None
    tail: str = ""


HANGS = {
    "kernel": "a worker waits for a kernel that does not end",
    "absent": "a rank does not enter an all-reduce",
    "crossed": "two ranks wait in all-reduces of different groups",
}
PROGRESS = {"default": (), "log,beat": ("--hang-progress=log,beat",)}


def hangs(arguments: argparse.Namespace, report: Report) -> None:
    """Measure with the default of `--hang-progress`, and without processor time, which a spinning worker uses."""
    nccl = arguments.gpus > 1
    for way, title in HANGS.items():
        backend = "nccl" if nccl and way != "kernel" else "gloo"
        report.settings |= on(arguments.device, backend)
        if way == "crossed" and not nccl:
            note = {"elastic": "not run: it needs NCCL with two GPUs; workers that wait in gloo do not spin"}
            report.rows.append(Row(f"{title}: next round", "s", {}, notes=note))
            continue
        for name, options in PROGRESS.items():
            found = stopped(way, arguments, backend, options)
            print(f"{way}, --hang-progress {name}: {found.problem or f'found after {found.seconds:.1f} s'}", flush=True)
            report.rows.append(
                Row(
                    f"{title}, --hang-progress {name}: next round",
                    "s",
                    {"elastic": found.seconds},
                    "found, next round ends well",
                    met=not found.problem,
                    notes={"elastic": found.problem or f"rank {found.blamed} killed"},
                )
            )
            report.measurements[f"{way} {name}"] = asdict(found)


def stopped(way: str, arguments: argparse.Namespace, backend: str, options: Sequence[str]) -> Found:
    """Run one job until it exits, or until the worker should have been found."""
    command = [
        *launcher_command("elastic"),
        *("--nproc-per-node=2", "--max-restarts=1", "--result-file=result.json"),
        *(f"--hang-timeout={HANG_S}", f"--hang-warmup={arguments.warmup}", *options),
        *(str(WORKERS / "spinning.py"), way, arguments.device, backend, str(arguments.warmup + LOGS_S)),
    ]
    with tempfile.TemporaryDirectory(prefix="elastic-benchmark-") as folder:
        job = Job(command, Path(folder))
        try:
            found = followed(job, arguments.warmup)
            if not found.problem:
                found.blamed = blamed(Path(folder) / "result.json")
                found.problem = "" if found.blamed is not None else "failed for another reason than a hang"
        finally:
            job.stop()
            end_descendants()
            job.wait_output_end()
    if found.problem:
        found.tail = "".join(text for text in job.output if "works" not in fact(text))[-3000:]
    return found


def followed(job: Job, warmup_s: float) -> Found:
    """Watch the job until the next round has ended."""
    stops = wait_fact(job, "stops", job.started + warmup_s + LOGS_S + END_LIMIT_S)
    if stops is None:
        return Found("no worker stopped")
    back = wait_fact(job, "runs", now() + HANG_S + NOTICE_S)
    if back is None:
        return Found(f"not found within {HANG_S + NOTICE_S:g} s, --hang-timeout={HANG_S:g}")
    code = job.wait_exit(now() + END_LIMIT_S)
    return Found("" if code == 0 else f"exit code {code}", back["at"] - stops["at"])


def blamed(result: Path) -> int | None:
    """The rank whose hang is the first failure."""
    first = json.loads(result.read_text())["failures"][0]
    return int(first["global_rank"]) if first["reason"].startswith("hang: ") else None

"""The parts of the suite. Each adds rows to its report as it measures them, so that an interrupted part keeps them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu import hangs, kills, load
from benchmarks.hangs import fact
from benchmarks.job import WORKERS, BenchmarkError, launcher_command, running
from benchmarks.processes import now
from benchmarks.report import Report, Row

COUNT_LIMIT_S = 120.0


@dataclass(frozen=True)
class Part:
    """One part of the suite.

    Args:
        needs_gpu: whether it is skipped without a GPU, or rehearsed with `--device cpu`.
    """

    measure: Callable[[argparse.Namespace, Report], None]
    needs_gpu: bool = True


def count(arguments: argparse.Namespace, report: Report) -> None:
    """Compare the number of workers that each value of --nproc-per-node starts with torch's number of devices."""
    cpu = arguments.device == "cpu"
    expected = len(os.sched_getaffinity(0)) if cpu else arguments.gpus
    for word in ("cpu" if cpu else "gpu", "auto"):
        found = workers_started(word, arguments.device)
        places = sorted(one["local_rank"] for one in found)
        right = places == list(range(expected)) and all(one["world_size"] == expected for one in found)
        computed = cpu or all(one["device"] == f"cuda:{one['local_rank']}" and one["sum"] == 8 for one in found)
        report.rows.append(
            Row(
                f"--nproc-per-node={word}: workers, each with its own local rank",
                "",
                {"elastic": float(len(found))},
                f"{expected}",
                met=right and computed,
                notes={} if right else {"elastic": f"local ranks {places}"},
            )
        )
        report.measurements[word] = found


def workers_started(word: str, kind: str) -> list[dict[str, Any]]:
    """The facts that the workers of a job with this --nproc-per-node print."""
    with running([*launcher_command("elastic"), f"--nproc-per-node={word}", str(WORKERS / "device.py"), kind]) as job:
        code = job.wait_exit(now() + COUNT_LIMIT_S)
        job.wait_output_end()
        if code != 0:
            raise BenchmarkError(f"--nproc-per-node={word}: exit code {code}.\n{''.join(job.output[-30:])}")
        return [fact(text) for text in job.output if "local_rank" in fact(text)]


PARTS = {
    "heal": Part(kills.heal),
    "warm": Part(kills.warm_start),
    "count": Part(count),
    "hangs": Part(hangs.hangs),
    "shared": Part(kills.shared),
    "recovery": Part(kills.recover),
    "rendezvous": Part(load.rendezvous, needs_gpu=False),
    "campaign": Part(load.storms, needs_gpu=False),
}

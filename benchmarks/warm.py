"""How much time does warm start save? Compares `elastic run --warm-start` with `elastic run`, in turn.

- `node`: the time from a worker's kill to the slower rank's next step. One node runs two workers of `workers/ddp.py`.
- `c10d`, `etcd`: the same with two nodes of one worker each, both on this machine.
- `lightning`, `transformers`: the same as `node`, with that library. Skipped if the library is not installed.
- `start`: the time from the launcher's start to the first step, with and without a cache.
- `memory`: the memory of four workers and the template, and the idle template's processor time.
- `first_line`: the time from the agent's decision to the first line of Python in each of two workers.

A warm job first waits until each agent has logged that its template is ready. Then its workers are killed several
times.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.cluster import Cluster, Shape, cluster
from benchmarks.etcd_recovery import etcd
from benchmarks.job import WORKERS, BenchmarkError, Job, launchers, running
from benchmarks.processes import cpu_seconds, now
from benchmarks.recovery import (
    FORM_LIMIT_S,
    STEPS,
    Meet,
    Scenario,
    Try,
    disturbed,
    form,
    kill,
    kill_worker,
    narrate,
    note,
    times,
)
from benchmarks.report import Report, Row, main, median, parser

WARM = "--warm-start"
ENDLESS = 1000
MOST_PAUSE_S = 0.5
APART_S = 8.0
LAST_CALL = "--rdzv-conf=last_call_timeout=12"
MEDIAN, EVERY, LATER_S = 0.2, 0.35, 0.4
WORKERS_OF_MEMORY = 4
STEADY_S = 10.0
FIRST_LINE_S = 0.03
KILLED = Scenario("", kill_worker, 2, 0)

Commands = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Setting:
    """A job whose workers are killed.

    Args:
        needs: a package that must be installed.
        few: whether to make only `--few` tries.
    """

    title: str
    shape: Shape
    nodes: int = 1
    meet: Meet = nullcontext
    needs: str = "torch"
    few: bool = True


PAIR = Shape(workers=2, restarts=ENDLESS)
SETTINGS = {
    "node": Setting("one node, worker killed: next step", PAIR, few=False),
    "c10d": Setting("two nodes over c10d, worker killed: next step", Shape(restarts=ENDLESS), 2),
    "etcd": Setting("two nodes over etcd, worker killed: next step", Shape(restarts=ENDLESS), 2, etcd),
    "lightning": Setting(
        "lightning, worker killed: next step", replace(PAIR, script="with_lightning.py"), needs="lightning"
    ),
    "transformers": Setting(
        "transformers, worker killed: next step", replace(PAIR, script="with_transformers.py"), needs="transformers"
    ),
}


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--parts", type=parts, default=list(PARTS), help=f"which ({','.join(PARTS)})")
    made.add_argument("--runs", type=int, default=50, help="kills of warm jobs on one node (50)")
    made.add_argument("--cold-runs", type=int, default=10, help="kills of cold jobs on one node (10)")
    made.add_argument("--few", type=int, default=5, help="tries of each side in each other part (5)")
    made.add_argument("--turns", type=int, default=5, help="jobs among which each side's tries are shared (5)")
    made.add_argument("--limit", type=float, default=60.0, help="seconds after which a try is considered hung (60)")
    made.add_argument("--seed", type=int, default=1, help="seed of the pauses before kills (1)")
    return made


def parts(text: str) -> list[str]:
    """Parse a comma-separated list of parts."""
    if unknown := set(found := text.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(PARTS)})")
    return found


def wait_template(agents: Sequence[Job]) -> list[int]:
    """Wait until each agent has a template that is ready. Returns their process ids."""
    found = []
    for agent in agents:
        line = agent.wait_line(lambda text: "template ready: " in text, now() + FORM_LIMIT_S)
        if line is None:
            raise BenchmarkError(f"no template is ready.\n{''.join(agent.output[-30:])}")
        found.append(int(re.findall(r"pid=(\d+)", line.text)[0]))
    return found


# A worker is killed.


def killed(side: str, command: Sequence[str], setting: Setting, count: int, arguments: argparse.Namespace) -> list[Try]:
    """Kill workers of one job, and of a new job after each try that did not recover."""
    tries: list[Try] = []
    lot = random.Random(f"{arguments.seed}/{side}/{count}")
    while len(tries) < count:
        with setting.meet() as meeting, cluster(command, str(setting.nodes), meeting, setting.shape) as job:
            if form(job, setting.nodes) is None:
                tries.append(Try("never formed", tail=job.tail()))
                continue
            if side == "warm":
                wait_template(job.agents)
            recovered = True
            while recovered and len(tries) < count:
                time.sleep(lot.uniform(0, MOST_PAUSE_S))
                tries.append(disturbed(job, KILLED, len(tries), arguments.limit))
                narrate(side, setting.title, len(tries) - 1, count, tries[-1])
                recovered = tries[-1].outcome == "recovered"
    return tries


def shares(count: int, turns: int) -> list[int]:
    """The number of tries of each turn."""
    return [count // turns + (turn < count % turns) for turn in range(turns)]


def kills(name: str, commands: Commands, arguments: argparse.Namespace, report: Report) -> None:
    """Make all tries of a setting."""
    setting = SETTINGS[name]
    if find_spec(setting.needs) is None:
        print(f"{name}: {setting.needs} is not installed")
        return
    counts = {"warm": arguments.runs, "cold": arguments.cold_runs}
    if setting.few:
        counts = {"warm": arguments.few, "cold": arguments.few}
    tries: dict[str, list[Try]] = {side: [] for side in commands}
    for turn in range(arguments.turns):
        for side in tries:
            tries[side] += killed(side, commands[side], setting, shares(counts[side], arguments.turns)[turn], arguments)
    report.rows += recovery_rows(setting, tries, arguments.limit)
    report.measurements[name] = {side: [asdict(one) for one in of_one] for side, of_one in tries.items()}


def recovery_rows(setting: Setting, tries: Mapping[str, Sequence[Try]], limit_s: float) -> list[Row]:
    """Rows with the recovery time and its two parts."""
    back, workers = times(tries, "recovery_s"), times(tries, "workers_s")
    rest = {side: [whole - part for whole, part in zip(back[side], workers[side], strict=True)] for side in back}
    every = [one.recovery_s for one in tries.get("warm", [])]
    cold = median(back.get("cold", []))
    is_met = at_most(every, cold, MEDIAN, EVERY)
    notes = {side: note(of_one, limit_s) for side, of_one in tries.items()}
    target = f"median <= {MEDIAN} of cold, every <= {EVERY}"
    made = {side: len(of_one) for side, of_one in tries.items()}
    whole = Row.measured(setting.title, "s", back, target, made=made, against=cold, met=is_met, notes=notes)
    later = Row.measured("- after that", "s", rest, made=made)
    if setting.nodes > 1:
        later.target, later.met = f"every try <= {LATER_S} s", at_most(every and rest["warm"], 1.0, LATER_S, LATER_S)
    return [whole, Row.measured("- of that, until its workers were started", "s", workers, made=made), later]


def at_most(values: Sequence[float | None], against: float | None, middle: float, every: float) -> bool | None:
    """Whether no value is None, the median is at most `middle * against`, and each value at most `every * against`.
    None if there is nothing to compare."""
    if not values or not against:
        return None
    known = [value for value in values if value is not None]
    return len(known) == len(values) and median(known) <= middle * against and max(known) <= every * against


# The first start.


def first_start(commands: Commands, arguments: argparse.Namespace, report: Report) -> None:
    """Measure one node whose round forms immediately, two nodes that start one after the other, and one node that waits
    for others in vain."""
    with tempfile.TemporaryDirectory(prefix="elastic-benchmark-") as cache:
        every = {**commands, "warm, cache": [*commands["warm"], f"--warm-start-cache={cache}"]}
        cases: dict[str, tuple[str, Callable[[Sequence[str]], float]]] = {
            "first start on one node: first step": ("first", from_start),
            f"second node {APART_S:g} s after the first: its start to the first step": ("second", from_second),
            "round formed after the last call: first step": ("formed", from_round),
        }
        for title, (name, seconds) in cases.items():
            filled(every["warm, cache"])
            found: dict[str, list[float]] = {side: [] for side in every}
            for _ in range(arguments.few):
                for side in every:
                    found[side].append(seconds(every[side]))
                    print(f"{title}: {side} {found[side][-1]:.2f} s", flush=True)
            report.measurements[f"start_{name}"] = found
            report.rows += start_rows(title, found)


def start_rows(title: str, found: Mapping[str, Sequence[float]]) -> list[Row]:
    """Rows without a cache and with one."""
    cold = median(found["cold"])
    both = ((title, found["warm"], 1.05), ("- the same with a cache", found["warm, cache"], 0.3))
    return [
        Row.measured(
            what,
            "s",
            {"warm": warm, "cold": found["cold"]},
            f"ratio <= {limit}",
            against=cold,
            met=at_most([median(warm)], cold, limit, limit),
        )
        for what, warm, limit in both
    ]


def filled(command: Sequence[str]) -> None:
    """Fill the cache with a job of the same script."""
    with cluster(command, "1", None, PAIR) as job:
        formed(form(job, 1), job)
        wait_template(job.agents)
        time.sleep(MOST_PAUSE_S)


def formed(seconds: float | None, job: Cluster) -> float:
    """The time, after checking that the job formed."""
    if seconds is None:
        raise BenchmarkError(f"the job did not form.\n{job.tail()}")
    return seconds


def from_start(command: Sequence[str]) -> float:
    """Seconds from the launcher's start to the first step of both workers."""
    with cluster(command, "1", None, PAIR) as job:
        return formed(form(job, 1), job)


def from_second(command: Sequence[str]) -> float:
    """Seconds from the start of the second of two launchers to the first step."""
    with cluster(command, "2", None, Shape()) as job:
        job.start_node()
        time.sleep(APART_S)
        second = job.start_node()
        trained = job.wait_resumed(2, (), STEPS, now() + FORM_LIMIT_S)
        return formed(trained and trained.at - second.started, job)


def from_round(command: Sequence[str]) -> float:
    """Seconds to the first step from the round of a node that has waited for another node."""
    with cluster(command, "1:2", None, replace(PAIR, options=(LAST_CALL,))) as job:
        seconds = form(job, 1)
        agent = job.agents[0]
        return formed(seconds and agent.started + seconds - round_formed(agent), job)


def round_formed(agent: Job) -> float:
    """Return the time of the last round, in seconds since boot, as logged by the agent in whole milliseconds."""
    found = [line.split()[0] for line in agent.output if " round formed: " in line]
    if not found:
        raise BenchmarkError(f"no round formed.\n{''.join(agent.output[-30:])}")
    return datetime.fromisoformat(found[-1].replace("Z", "+00:00")).timestamp() - time.time() + now()


# Memory and processor time.


def memory(commands: Commands, arguments: argparse.Namespace, report: Report) -> None:
    """Measure jobs whose workers have been killed once."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(min(3, arguments.few)):
        for side in ("warm", "cold"):
            found.setdefault(side, []).append(footprint(side, commands[side], arguments.limit))
            print(f"memory: {side} {found[side][-1]}", flush=True)
    held, template = (
        {side: [one[name] for one in all_] for side, all_ in found.items()} for name in ("all", "template")
    )
    busy = {"warm": [one["busy"] for one in found["warm"]]}
    cold = median(held["cold"])
    report.rows += [
        Row.measured(
            f"template and {WORKERS_OF_MEMORY} workers: memory",
            "MiB",
            held,
            "ratio <= 0.85",
            against=cold,
            met=at_most([median(held["warm"])], cold, 0.85, 0.85),
        ),
        Row.measured("- of that, the template", "MiB", {"warm": template["warm"]}),
        Row.measured(f"processor time of the template in {STEADY_S:g} s", "s", busy, "0", met=not any(busy["warm"])),
    ]
    report.measurements["memory"] = found


def footprint(side: str, command: Sequence[str], limit_s: float) -> dict[str, float]:
    """Memory of all processes and of the template in MiB, and the template's processor time in seconds."""
    with cluster(command, "1", None, replace(PAIR, workers=WORKERS_OF_MEMORY)) as job:
        formed(form(job, 1, WORKERS_OF_MEMORY), job)
        templates = wait_template(job.agents) if side == "warm" else []
        back = disturbed(job, replace(KILLED, world_size=WORKERS_OF_MEMORY), 0, limit_s)
        formed(back.recovery_s, job)
        time.sleep(1)
        pids = list(job.workers().values())
        own = sum(map(proportional, templates))
        held = own + sum(map(proportional, pids))
        before = sum(map(cpu_seconds, templates))
        time.sleep(STEADY_S * bool(templates))
        return {"all": held, "template": own, "busy": sum(map(cpu_seconds, templates)) - before}


def proportional(pid: int) -> float:
    """The proportional set size of a process in MiB."""
    return int(re.findall(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[0]) / 1024


# The first line.


def first_line(commands: Commands, arguments: argparse.Namespace, report: Report) -> None:
    """Measure two workers that print the time of their first line."""
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(arguments.turns):
        for side in ("warm", "cold"):
            share = shares(4 * arguments.few, arguments.turns)[turn]
            found.setdefault(side, []).extend(lines_after_kills(side, commands[side], share))
            print(f"first_line: {side} {found[side][-share:]}", flush=True)
    whats = (
        "the agent's decision to the first line of a worker",
        "- the same for the other worker, started after it",
    )
    for place, what in enumerate(whats):
        seconds = {side: [one[place] for one in of_one] for side, of_one in found.items()}
        is_met = at_most([median(seconds["warm"])], FIRST_LINE_S, 1, 1)
        target, cold = f"median <= {FIRST_LINE_S} s", median(seconds["cold"])
        report.rows.append(Row.measured(what, "s", seconds, target, against=cold, met=is_met))
    report.measurements["first_line"] = found


def lines_after_kills(side: str, command: Sequence[str], count: int) -> Iterator[tuple[float, float]]:
    """For each kill, the seconds from the round to the first line of each worker."""
    shape = ["--standalone", "--nproc-per-node=2", f"--max-restarts={ENDLESS}"]
    with running([*command, *shape, str(WORKERS / "first_line.py")]) as job:
        workers = both(job)
        if side == "warm":
            wait_template([job])
        for _ in range(count):
            time.sleep(MOST_PAUSE_S)
            kill(workers[0]["pid"])
            workers = both(job)
            first, last = sorted(one["first_line"] - round_formed(job) for one in workers)
            yield first, last


def both(job: Job) -> list[dict[str, Any]]:
    """The output of the next two workers."""
    lines = [job.wait_line(lambda text: text.startswith('{"first_line"'), now() + FORM_LIMIT_S) for _ in range(2)]
    if None in lines:
        raise BenchmarkError(f"not both workers started.\n{''.join(job.output[-30:])}")
    return [json.loads(line.text) for line in lines if line]


OTHERS = {"start": first_start, "memory": memory, "first_line": first_line}
PARTS = (*SETTINGS, *OTHERS)


def measure(arguments: argparse.Namespace) -> Report:
    """Measure the chosen parts."""
    found = launchers(arguments)
    if "elastic" not in found:
        raise BenchmarkError("warm start requires elastic in --launchers")
    commands = {"warm": [*found["elastic"], WARM], "cold": found["elastic"]}
    report = Report("warm", {"limit": arguments.limit})
    for part in arguments.parts:
        if part in SETTINGS:
            kills(part, commands, arguments, report)
        else:
            OTHERS[part](commands, arguments, report)
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

"""How soon does a job of several nodes train again after it has lost or gained something?

Agents of one job on this machine, each with one worker that runs `workers/ddp.py` (DDP over gloo). Two are started, and
once they train, something happens. Measured is from that moment to the first optimizer step of the new world (of its
slowest rank). A try has *recovered* when every rank of that world has made 5 steps, *failed* when all agents have left
before, and *hung* when neither has come about within `--limit` seconds.

- `worker`: SIGKILL to a worker, of each node in turn. Back at world size 2.
- `node`: SIGKILL to an agent and its worker (not those of the node that hosts the store). The other goes on alone.
- `sigterm`: SIGTERM to an agent (not the host). The other goes on alone.
- `third`: a third agent is started; to the first step at world size 3.
- `agent`: SIGKILL to an agent alone (not the host). Its worker must die too, and the other goes on alone.
- `fixed`: as `worker`, with two nodes, neither more nor less.

The first five run with `--nnodes=1:3`; everything else is default and the same for both.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass

from benchmarks.cluster import Cluster, Meeting, cluster
from benchmarks.job import launchers
from benchmarks.processes import now, wait_gone
from benchmarks.report import Report, Row, main, medians, parser

STEPS = 5
MOST_PAUSE_S = 0.5
FORM_LIMIT_S = 120.0
AGENT_STARTED_S, AGENT_GONE_S = 1.0, 0.1

Meet = Callable[[], AbstractContextManager[Meeting | None]]
"""Starts a store for a job to meet at; None: one of its nodes hosts it."""


@dataclass
class Try:
    """One job, in seconds. What did not come about is None.

    Args:
        formed_s: from the start of the first agent until both nodes had trained.
        recovery_s: from the disturbance to the first step of the new world.
        workers_s: until the last of its workers was started; what follows is import of torch and set-up of the group.
        worker_gone_s: where only the agent was killed, until its worker was gone too.
        tail: what the agents said last, where the job did not recover.
    """

    outcome: str
    formed_s: float | None = None
    recovery_s: float | None = None
    workers_s: float | None = None
    worker_gone_s: float | None = None
    tail: str = ""


@dataclass(frozen=True)
class Scenario:
    """What happens to a job that trains on two nodes.

    Args:
        disturb: does it, given the cluster and the number of the try.
        world_size: of the world that must train afterwards.
        target_s: what is asked of ours, for every try.
        watch_worker: whether the worker of node 1 must die as well.
    """

    title: str
    disturb: Callable[[Cluster, int], None]
    world_size: int
    target_s: float
    nodes: str = "1:3"
    watch_worker: bool = False


def kill_worker(job: Cluster, number: int) -> None:
    """Of each node in turn."""
    kill(job.workers()[number % 2])


def kill_node(job: Cluster, number: int) -> None:
    """The agent first, or it would see its worker die."""
    worker = job.workers()[1]
    kill(job.agents[1].pid)
    with suppress(ProcessLookupError):  # It may have died with its agent.
        kill(worker)


def end_agent(job: Cluster, number: int) -> None:
    """As a scheduler does."""
    os.kill(job.agents[1].pid, signal.SIGTERM)


def add_node(job: Cluster, number: int) -> None:
    """Beyond the two that train."""
    job.start_node()


def kill_agent(job: Cluster, number: int) -> None:
    """Its worker is left to itself, or not."""
    kill(job.agents[1].pid)


def kill(pid: int) -> None:
    """A process of ours that has just been seen at work."""
    os.kill(pid, signal.SIGKILL)


SCENARIOS = {
    "worker": Scenario("worker killed: next step at world size 2", kill_worker, 2, 4),
    "node": Scenario("agent and worker killed: next step at world size 1", kill_node, 1, 10),
    "sigterm": Scenario("agent gets SIGTERM: next step at world size 1", end_agent, 1, 5),
    "third": Scenario("third agent started: first step at world size 3", add_node, 3, 6),
    "agent": Scenario("agent alone killed: next step at world size 1", kill_agent, 1, 10, watch_worker=True),
    "fixed": Scenario("2 nodes fixed, worker killed: next step", kill_worker, 2, 4, nodes="2"),
}


def scenarios(text: str) -> list[str]:
    """Names on the command line."""
    found = [name for name in text.split(",") if name]
    if unknown := set(found) - set(SCENARIOS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: known are {', '.join(SCENARIOS)}")
    return found


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--scenarios", type=scenarios, default=list(SCENARIOS), help=f"which ({','.join(SCENARIOS)})")
    made.add_argument("--runs", type=int, default=5, help="tries of elastic for each scenario but fixed (5)")
    made.add_argument("--torchrun-runs", type=int, default=3, help="tries of torchrun for each but fixed (3)")
    made.add_argument("--fixed-runs", type=int, default=20, help="tries of elastic for fixed (20)")
    made.add_argument("--torchrun-fixed-runs", type=int, default=10, help="tries of torchrun for fixed (10)")
    made.add_argument("--limit", type=float, default=90.0, help="seconds after which a try counts as hung (90)")
    made.add_argument("--seed", type=int, default=1, help="of the pause before something happens (1)")
    return made


def form(job: Cluster, nodes: int = 2, world_size: int = 2) -> float | None:
    """Let one or two nodes train; seconds from the first one's start, None if they do not."""
    first = job.start_node()
    deadline = first.started + FORM_LIMIT_S
    if nodes > 1:
        job.wait_host(deadline)
        job.start_node()
    trained = job.wait_resumed(world_size, (), STEPS, deadline)
    return None if trained is None else trained.at - first.started


def attempt(
    launcher: Sequence[str],
    scenario: Scenario,
    number: int,
    arguments: argparse.Namespace,
    meet: Meet = nullcontext,
) -> Try:
    """One job, from its start to its recovery or the limit."""
    with meet() as meeting, cluster(launcher, scenario.nodes, meeting) as job:
        formed = form(job)
        if formed is None:
            return Try("never formed", tail=job.tail())
        time.sleep(random.Random(f"{arguments.seed}/{number}").uniform(0, MOST_PAUSE_S))
        made = disturbed(job, scenario, number, arguments.limit)
        made.formed_s = formed
        return made


def disturbed(job: Cluster, scenario: Scenario, number: int, limit_s: float) -> Try:
    """Let it happen, and see what becomes of the job."""
    workers = job.workers()
    at = now()
    scenario.disturb(job, number)
    made = Try("recovered")
    if scenario.watch_worker and (gone := wait_gone([workers[1]], limit_s)) is not None:
        made.worker_gone_s = gone - at
    back = job.wait_resumed(scenario.world_size, workers.values(), STEPS, at + limit_s)
    if back is not None:
        made.recovery_s, made.workers_s = back.at - at, back.started - at
        return made
    made.outcome = "failed" if all(agent.process.poll() is not None for agent in job.agents) else "hung"
    made.tail = job.tail()
    return made


def note(tries: Sequence[Try], limit_s: float) -> str:
    """How many of them recovered, the slowest, and what became of the others."""
    seconds = [one.recovery_s for one in tries if one.recovery_s is not None]
    said = [f"{len(seconds)} of {len(tries)}"]
    if seconds:
        said.append(f"slowest {max(seconds):.1f} s")
    for outcome in sorted({one.outcome for one in tries} - {"recovered"}):
        count = sum(one.outcome == outcome for one in tries)
        said.append(f"{count} {outcome}" + (f" ({limit_s:.0f} s)" if outcome == "hung" else ""))
    return ", ".join(said)


def met(tries: Sequence[Try], scenario: Scenario) -> bool | None:
    """Whether every try recovered in time, with the worker gone where it had to go. None of no tries."""
    if not tries:
        return None
    in_time = all(one.recovery_s is not None and one.recovery_s <= scenario.target_s for one in tries)
    return in_time and not (scenario.watch_worker and any(one.worker_gone_s is None for one in tries))


def times(tries: Mapping[str, Sequence[Try]], name: str) -> dict[str, list[float]]:
    """One kind of time of the tries in which it came about."""
    return {who: [t for one in of_one if (t := getattr(one, name)) is not None] for who, of_one in tries.items()}


def rows(scenario: Scenario, tries: Mapping[str, Sequence[Try]], limit_s: float) -> list[Row]:
    """The medians of those that recovered, and how many did."""
    made = [
        Row(
            scenario.title,
            "s",
            medians(times(tries, "recovery_s")),
            f"every try <= {scenario.target_s:g} s",
            met=met(tries.get("elastic", []), scenario),
            notes={name: note(of_one, limit_s) for name, of_one in tries.items()},
        ),
    ]
    started = "- of that, until its workers were started"
    if not scenario.watch_worker:
        return [*made, Row(started, "s", medians(times(tries, "workers_s")))]
    made.append(each_within(started, tries, "workers_s", AGENT_STARTED_S))
    return [*made, each_within("- worker of the killed agent gone", tries, "worker_gone_s", AGENT_GONE_S)]


def each_within(what: str, tries: Mapping[str, Sequence[Try]], name: str, target_s: float) -> Row:
    """One kind of time that has a target of its own, which every try of ours has to meet."""
    found = times(tries, name)
    notes = {
        who: f"{len(seconds)} of {len(tries[who])}, slowest {max(seconds, default=0.0):.2f} s"
        for who, seconds in found.items()
    }
    ours = tries.get("elastic", [])
    met = len(found["elastic"]) == len(ours) and max(found["elastic"]) <= target_s if ours else None
    return Row(what, "s", medians(found), f"every try <= {target_s:g} s", met=met, notes=notes)


def narrate(launcher: str, name: str, number: int, of: int, made: Try) -> None:
    """One line per try: all of them take long."""
    after = "" if made.recovery_s is None else f" after {made.recovery_s:.2f} s (workers {made.workers_s:.2f} s)"
    formed = "" if made.formed_s is None else f" (formed after {made.formed_s:.1f} s)"
    print(f"{launcher} {name} {number + 1}/{of}: {made.outcome}{after}{formed}", flush=True)
    if made.tail:
        print("".join(f"    {line}\n" for line in made.tail.splitlines()[-12:]), flush=True)


def tries_of(launcher: str, name: str, arguments: argparse.Namespace) -> int:
    """How many."""
    counts = {
        ("elastic", False): arguments.runs,
        ("torchrun", False): arguments.torchrun_runs,
        ("elastic", True): arguments.fixed_runs,
        ("torchrun", True): arguments.torchrun_fixed_runs,
    }
    return int(counts[launcher, name == "fixed"])


def run_scenario(
    name: str, commands: Mapping[str, Sequence[str]], arguments: argparse.Namespace, meet: Meet = nullcontext
) -> dict[str, list[Try]]:
    """All tries, the launchers in turn as long as both have some left."""
    tries: dict[str, list[Try]] = {launcher: [] for launcher in commands}
    counts = {launcher: tries_of(launcher, name, arguments) for launcher in commands}
    for number in range(max(counts.values())):
        for launcher in (launcher for launcher in commands if number < counts[launcher]):
            made = attempt(commands[launcher], SCENARIOS[name], number, arguments, meet)
            narrate(launcher, name, number, counts[launcher], made)
            tries[launcher].append(made)
    return tries


def measure(arguments: argparse.Namespace) -> Report:
    """All scenarios asked for."""
    commands = launchers(arguments)
    report = Report("recovery", {"limit": arguments.limit, "nproc_per_node": 1})
    for name in arguments.scenarios:
        tries = run_scenario(name, commands, arguments)
        report.rows += rows(SCENARIOS[name], tries, arguments.limit)
        report.measurements[name] = {launcher: [asdict(one) for one in of_one] for launcher, of_one in tries.items()}
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

"""How soon does a job of several nodes train again after a loss or a gain?

The agents of one job run on this machine, each with one worker that runs `workers/ddp.py` (DDP over gloo). Once they
train, a scenario disturbs them. The time runs from that moment to the slowest rank's first optimizer step in the new
world. A try has *recovered* if every rank of that world makes 5 steps, *failed* if all agents exit first, and *hung*
if it has not recovered within `--limit` seconds. It *trained on unaware* if it hung while the old workers, one of them
without an agent, kept making steps.

- `worker`: two nodes. A worker gets SIGKILL (on each node in turn). The new world has size 2.
- `node`: three nodes. An agent and its worker get SIGKILL (not on the store's host). The new world has size 2.
- `sigterm`: three nodes. An agent gets SIGTERM (not on the store's host). The new world has size 2.
- `third`: two nodes. A third agent starts. The new world has size 3.
- `agent`: three nodes. Only an agent gets SIGKILL (not on the store's host), and its worker must also exit. The new
  world has size 2.
- `fixed`: the same as `worker`, but with `--nnodes=2` and each launcher's defaults.

The first five run with `--nnodes=2:3`, once with the same rendezvous settings for both launchers (`like`), and once
with each launcher's defaults (`default`). `own_store` is `like` with a torch variable that makes workers host their
group's store. Otherwise, torchrun uses one store for all rounds, and new workers find the addresses of dead ones in it.
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

from benchmarks.cluster import Cluster, Meeting, Shape, cluster
from benchmarks.job import launchers
from benchmarks.processes import now, wait_gone
from benchmarks.report import Report, Row, main, parser

STEPS = 5
MOST_PAUSE_S = 0.5
FORM_LIMIT_S = 120.0
AGENT_STARTED_S, AGENT_GONE_S = 1.0, 0.1
TIMED_OUT = ("hung", "trained on unaware")
UNAWARE_S = 2.0
"""A worker still trains if its last step is more recent than this."""

SAME = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=5"
"""The --rdzv-conf of `like` for both launchers: elastic-core's defaults. A much shorter last call may end before all
agents of a try have started."""

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
"""With it, workers host a new store for each round, and cannot read addresses of dead peers from an earlier one."""


@dataclass(frozen=True)
class Setting:
    """Settings for both launchers.

    Args:
        label: prefix of row titles.
        options: options of the launchers.
        environ: environment variables, as NAME=VALUE.
    """

    label: str
    options: tuple[str, ...] = ()
    environ: tuple[str, ...] = ()

    def command(self, launcher: Sequence[str]) -> list[str]:
        """The launcher's command with these variables."""
        return ["env", *self.environ, *launcher] if self.environ else list(launcher)


SETTINGS = {
    "like": Setting("like for like", (f"--rdzv-conf={SAME}",)),
    "own_store": Setting("like for like, workers host their store", (f"--rdzv-conf={SAME}",), (OWN_STORE,)),
    "default": Setting("defaults"),
}
FIXED = Setting("fixed size")
USUAL = ("like", "default")

Meet = Callable[[], AbstractContextManager[Meeting | None]]
"""Starts a job's rendezvous store; None: one of the nodes hosts it."""


@dataclass
class Try:
    """Times of one job in seconds. None means that the event did not happen.

    Args:
        formed_s: from the start of the first agent until all nodes had trained.
        recovery_s: from the disturbance to the first step of the new world.
        workers_s: from the disturbance until the last new worker was started; the rest of `recovery_s` is the import of
            torch and the setup of the group.
        worker_gone_s: if only an agent was killed, the time until its worker had exited, too.
        tail: the last output of the agents, if the job did not recover.
    """

    outcome: str
    formed_s: float | None = None
    recovery_s: float | None = None
    workers_s: float | None = None
    worker_gone_s: float | None = None
    tail: str = ""


@dataclass(frozen=True)
class Scenario:
    """A disturbance of a job that trains.

    Args:
        disturb: causes it, given the cluster and the number of the try.
        world_size: size of the world that must train afterwards.
        target_s: limit for every try of elastic-core.
        nodes: as in --nnodes.
        start: number of nodes that train before the disturbance.
        watch_worker: whether the worker of node 1 must die as well.
    """

    title: str
    disturb: Callable[[Cluster, int], None]
    world_size: int
    target_s: float
    nodes: str = "2:3"
    start: int = 2
    watch_worker: bool = False


def kill_worker(job: Cluster, number: int) -> None:
    """Kill a worker, of each node in turn."""
    kill(job.workers()[number % 2])


def kill_node(job: Cluster, number: int) -> None:
    """Kill an agent and its worker. The agent dies first, so that it does not notice its worker's death."""
    worker = job.workers()[1]
    kill(job.agents[1].pid)
    with suppress(ProcessLookupError):  # it may have died with its agent
        kill(worker)


def end_agent(job: Cluster, number: int) -> None:
    """Send SIGTERM to an agent, as a scheduler does."""
    os.kill(job.agents[1].pid, signal.SIGTERM)


def add_node(job: Cluster, number: int) -> None:
    """Add a third node."""
    job.start_node()


def kill_agent(job: Cluster, number: int) -> None:
    """Kill only an agent."""
    kill(job.agents[1].pid)


def kill(pid: int) -> None:
    """Kill a process of the job that was just seen training."""
    os.kill(pid, signal.SIGKILL)


SCENARIOS = {
    "worker": Scenario("2 nodes, worker killed: next step", kill_worker, 2, 4),
    "node": Scenario("3 nodes, one lost: next step of the other two", kill_node, 2, 10, start=3),
    "sigterm": Scenario("3 nodes, SIGTERM to one agent: next step of the other two", end_agent, 2, 5, start=3),
    "third": Scenario("2 nodes, a third joins: first step of all three", add_node, 3, 6),
    "agent": Scenario(
        "3 nodes, agent alone killed: next step of the other two", kill_agent, 2, 10, start=3, watch_worker=True
    ),
    "fixed": Scenario("2 nodes, worker killed: next step", kill_worker, 2, 4, nodes="2"),
}


def scenarios(text: str) -> list[str]:
    """Parse a comma-separated list of scenarios."""
    found = [name for name in text.split(",") if name]
    if unknown := set(found) - set(SCENARIOS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(SCENARIOS)})")
    return found


def settings(text: str) -> list[str]:
    """Parse a comma-separated list of settings."""
    found = text.split(",")
    if unknown := set(found) - set(SETTINGS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))} (known: {', '.join(SETTINGS)})")
    return found


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--scenarios", type=scenarios, default=list(SCENARIOS), help=f"which ({','.join(SCENARIOS)})")
    made.add_argument(
        "--settings", type=settings, default=list(USUAL), help=f"which of {','.join(SETTINGS)} ({','.join(USUAL)})"
    )
    made.add_argument("--runs", type=int, default=10, help="tries of each launcher (10)")
    made.add_argument("--limit", type=float, default=60.0, help="seconds after which a try is considered hung (60)")
    made.add_argument("--seed", type=int, default=1, help="seed of the pauses before disturbances (1)")
    return made


def form(job: Cluster, nodes: int = 2, world_size: int = 2) -> float | None:
    """Start these nodes. Returns the seconds from the first start until all train, or None if they do not."""
    first = job.start_node()
    deadline = first.started + FORM_LIMIT_S
    if nodes > 1:
        job.wait_host(deadline)
        for _ in range(nodes - 1):
            job.start_node()
    trained = job.wait_resumed(world_size, (), STEPS, deadline)
    return None if trained is None else trained.at - first.started


def attempt(
    launcher: Sequence[str],
    scenario: Scenario,
    number: int,
    arguments: argparse.Namespace,
    meet: Meet = nullcontext,
    more: tuple[str, ...] = (),
) -> Try:
    """Run one job with more launcher options until it recovers or reaches the limit."""
    with meet() as meeting, cluster(launcher, scenario.nodes, meeting, Shape(options=more)) as job:
        formed = form(job, scenario.start, scenario.start)
        if formed is None:
            return Try("never formed", tail=job.tail())
        time.sleep(random.Random(f"{arguments.seed}/{number}").uniform(0, MOST_PAUSE_S))
        made = disturbed(job, scenario, number, arguments.limit)
        made.formed_s = formed
        return made


def disturbed(job: Cluster, scenario: Scenario, number: int, limit_s: float) -> Try:
    """Disturb the job, and watch it."""
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
    if all(agent.process.poll() is not None for agent in job.agents):
        made.outcome = "failed"
    else:
        made.outcome = "trained on unaware" if job.trains(workers.values(), UNAWARE_S) else "hung"
    made.tail = job.tail()
    return made


def note(tries: Sequence[Try], limit_s: float) -> str:
    """Return the number of tries that did not recover, by outcome, or an empty string if all recovered."""
    parts = []
    for outcome in sorted({one.outcome for one in tries} - {"recovered"}):
        count = sum(one.outcome == outcome for one in tries)
        parts.append(f"{count} {outcome}" + (f" ({limit_s:.0f} s)" if outcome in TIMED_OUT else ""))
    return ", ".join(parts)


def met(tries: Sequence[Try], scenario: Scenario) -> bool | None:
    """Whether every try recovered in time, and its worker exited if it had to. None if there are no tries."""
    if not tries:
        return None
    in_time = all(one.recovery_s is not None and one.recovery_s <= scenario.target_s for one in tries)
    return in_time and not (scenario.watch_worker and any(one.worker_gone_s is None for one in tries))


def times(tries: Mapping[str, Sequence[Try]], name: str) -> dict[str, list[float]]:
    """One kind of time, of the tries that have it."""
    return {who: [t for one in of_one if (t := getattr(one, name)) is not None] for who, of_one in tries.items()}


def rows(scenario: Scenario, tries: Mapping[str, Sequence[Try]], limit_s: float, label: str = "") -> list[Row]:
    """Rows with the times of the tries that recovered, and the outcomes of the other tries. Titles begin with the
    label."""
    counts = {name: len(of_one) for name, of_one in tries.items()}
    made = [
        Row.measured(
            f"{label}: {scenario.title}" if label else scenario.title,
            "s",
            times(tries, "recovery_s"),
            f"every try <= {scenario.target_s:g} s",
            made=counts,
            met=met(tries.get("elastic", []), scenario),
            notes={name: note(of_one, limit_s) for name, of_one in tries.items()},
        ),
    ]
    started = "- of that, until its workers were started"
    if not scenario.watch_worker:
        return [*made, Row.measured(started, "s", times(tries, "workers_s"), made=counts)]
    made.append(each_within(started, tries, "workers_s", AGENT_STARTED_S))
    return [*made, each_within("- killed agent's worker exited", tries, "worker_gone_s", AGENT_GONE_S)]


def each_within(what: str, tries: Mapping[str, Sequence[Try]], name: str, target_s: float) -> Row:
    """A row for one kind of time, with a target for every try of elastic-core."""
    found = times(tries, name)
    ours = tries.get("elastic", [])
    met = len(found["elastic"]) == len(ours) and max(found["elastic"]) <= target_s if ours else None
    made = {who: len(of_one) for who, of_one in tries.items()}
    return Row.measured(what, "s", found, f"every try <= {target_s:g} s", made=made, met=met)


def narrate(launcher: str, name: str, number: int, of: int, made: Try) -> None:
    """Print a line per try, because all tries take long."""
    after = "" if made.recovery_s is None else f" after {made.recovery_s:.2f} s (workers {made.workers_s:.2f} s)"
    formed = "" if made.formed_s is None else f" (formed after {made.formed_s:.1f} s)"
    print(f"{launcher} {name} {number + 1}/{of}: {made.outcome}{after}{formed}", flush=True)
    if made.tail:
        print("".join(f"    {line}\n" for line in made.tail.splitlines()[-12:]), flush=True)


def run_scenario(
    name: str,
    commands: Mapping[str, Sequence[str]],
    arguments: argparse.Namespace,
    meet: Meet = nullcontext,
    setting: Setting = FIXED,
) -> dict[str, list[Try]]:
    """Run all tries, alternating between the launchers."""
    tries: dict[str, list[Try]] = {launcher: [] for launcher in commands}
    for number in range(arguments.runs):
        for launcher, command in commands.items():
            made = attempt(setting.command(command), SCENARIOS[name], number, arguments, meet, setting.options)
            narrate(launcher, name, number, arguments.runs, made)
            tries[launcher].append(made)
    return tries


def cells(chosen: Sequence[str], names: Sequence[str]) -> list[tuple[str, Setting]]:
    """Scenario and setting of each measurement, grouped by scenario. `fixed` is measured once."""
    made = [(name, SETTINGS[one]) for name in names if name != "fixed" for one in SETTINGS if one in chosen]
    return [*made, *([("fixed", FIXED)] if "fixed" in names else [])]


def measure(arguments: argparse.Namespace) -> Report:
    """Measure the chosen scenarios with the chosen settings."""
    commands = launchers(arguments)
    report = Report("recovery", {"like_for_like": SAME, "nproc_per_node": 1})
    for name, setting in cells(arguments.settings, arguments.scenarios):
        print(f"-- {setting.label}: {name}", flush=True)
        tries = run_scenario(name, commands, arguments, setting=setting)
        report.rows += rows(SCENARIOS[name], tries, arguments.limit, setting.label)
        report.measurements[f"{setting.label}: {name}"] = {
            launcher: [asdict(one) for one in of_one] for launcher, of_one in tries.items()
        }
    return report


if __name__ == "__main__":
    sys.exit(main(measure, options()))

"""Invariants of a job under faults: pure functions that find violations in a history.

The rules:

- `one group`: two groups of workers never take steps at the same time. A step that was pending when a node was
  disconnected is exempt: it may complete when the node reconnects.
- `ranks`: each rank is used once, and ranks run from 0 without gaps. All workers of a round have the same world size
  and restart count.
- `cause`: the number of new rounds is within the limits set by the wave's faults. Members change only if a node may
  have been lost, and the loss of a node is not reported long after the node has left.
- `counted once`: each failure is counted exactly once as a restart, and nothing else is counted. The count returns
  to 0 only if the nodes host the store and all nodes of the last round have ended, because no node remembers it then.
- `healthy`: if no fault affects a worker or its agent, the worker gets SIGTERM before SIGKILL, unless the other nodes
  no longer wait for its node. No worker of an earlier round runs during the next one.
- `checkpoint`: no step in a checkpoint is lost.
- `same step`: workers that stop together stop at the same step, and no worker of their round takes this step.
- `recovery`: all nodes train again within the time limit.
- `exit code`: an agent ends only because of a fault or at the end of the job, with the right exit code.
- `right cause`: the loss of a node is not reported as a failure of the script.
- `left over`: no process, file, key or lease is left behind, and agents do not leak resources.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from elastic_testing.campaign.storm import KINDS, Fault, FaultWave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_testing.campaign.history import History, SeenRound, Span

AT_ONCE_S = 0.05
"""Maximum overlap in seconds of two steps that are considered sequential."""

LONG_GONE_S = 30.0
"""Time limit in seconds for reporting a node as lost. Detecting the loss and stopping the workers take less time."""

MORE_FILES, MORE_THREADS, MORE_MEMORY = 40, 12, 64 * 2**20
"""How much an agent's open files, threads and memory (bytes) may grow from its first record to its last. The last
record may include resources of the last round."""


@dataclass(frozen=True)
class Violation:
    """A violation of a rule. `what` describes it, `at` is its time in seconds since boot, and `wave` is the number of
    the current wave, or None before the first wave."""

    rule: str
    what: str
    at: float
    wave: int | None = None


def check(history: History) -> list[Violation]:
    """Return all violations, in order of time."""
    found = []
    for rule, search in RULES.items():
        found += [Violation(rule, what, at, _wave_of(history, at)) for what, at in search(history)]
    return sorted(found, key=lambda one: one.at)


def _wave_of(history: History, at: float) -> int | None:
    begun = [span.number for span in history.spans if span.begun <= at]
    return begun[-1] if begun else None


def _waves(history: History) -> Iterator[tuple[Span, FaultWave, list[SeenRound], SeenRound | None]]:
    """Yield each wave's time span, its faults that had a target, the rounds that started in it, and the last round
    before it."""
    rounds = history.rounds
    for span in history.spans:
        faults = tuple(Fault(**fault) for fault in span.event["faults"])
        struck = {event["fault"] for event in history.of("fault")
                  if event["number"] == span.number and not event["missed"]}  # fmt: skip
        wave = FaultWave(tuple(fault for number, fault in enumerate(faults) if number in struck))
        mine = [one for one in rounds if span.begun <= one.started < span.until]
        before = [one for one in rounds if one.started < span.begun]
        yield span, wave, mine, before[-1] if before else None


def _one_group(history: History) -> Iterator[tuple[str, float]]:
    working = sorted((one for one in history.rounds if one.first_steps and one.acts),
                     key=lambda one: min(one.first_steps.values()))  # fmt: skip
    for older, newer in pairwise(working):
        begun = min(newer.first_steps.values())
        if (together := older.acts[-1] - begun) > AT_ONCE_S:
            yield f"{older.port} took steps for {together:.2f} s after {newer.port} had begun", begun


def _ranks(history: History) -> Iterator[tuple[str, float]]:
    for event in history.of("twice"):
        yield f"{event['others']} workers have rank {event['rank']}", event["at"]
    for one in history.rounds:
        workers = one.workers.values()
        for name in ("world", "restart"):
            if len(values := {getattr(worker, name) for worker in workers}) > 1:
                yield f"the workers of {one.port} have different values of {name}: {sorted(values)}", one.started
        if beyond := [rank for rank in one.workers if rank >= one.world]:
            yield f"rank {beyond[0]} in a world of {one.world}", one.started
        if len(nodes := [worker.node for worker in workers]) != len(set(nodes)) and _one_each(history):
            yield f"a node has more than one worker in {one.port}: {sorted(nodes)}", one.started


def _one_each(history: History) -> bool:
    """Return whether every node has one worker."""
    return all(event["local"] == 0 for event in history.of("start"))


def _cause(history: History) -> Iterator[tuple[str, float]]:
    first = history.spans[0].begun if history.spans else float("inf")
    # If the next round forms before all workers of a round have started, the members of that round are unknown.
    whole = [one for one in history.rounds if one.started < first and len(one.workers) == one.world]
    for older, newer in pairwise(whole):
        if not newer.nodes > older.nodes:
            yield f"a round of {sorted(newer.nodes)} formed before the first fault, without a new node", newer.started
    for span, wave, mine, _ in _waves(history):
        least, most = wave.rounds
        if len(mine) > most:
            yield f"{_of(wave)}: {len(mine)} rounds formed, but the faults explain at most {most}", mine[most].started
        if len(mine) < least:
            yield f"{_of(wave)}: {len(mine)} rounds formed, expected at least {least}", span.begun

    for _, wave, mine, before in _waves(history):
        if before and not any(
            KINDS[fault.kind].loses or KINDS[fault.kind].linger_s or fault.kind == "join" for fault in wave.faults
        ):
            for one in mine:
                if added := one.nodes - before.nodes:
                    yield f"{_of(wave)}: {sorted(added)} joined a round, although no node was lost", one.started
    ended: dict[str, float] = {event["node"]: event["at"] for event in history.of("agent ended")}
    for event in history.of("logged"):
        found = re.match(r"lost ([^:]+):", event.get("reason", "")) if event["event"] == "restart decided" else None
        at: float = event["at"]
        gone = ended.get(found[1], at) if found else at
        if found and at - gone > LONG_GONE_S and not _was_suspended(history, event["node"], gone, at):
            yield f"{found[1]} was reported as lost {event['at'] - gone:.0f} s after it had exited", event["at"]


def _was_suspended(history: History, node: str, begin: float, end: float) -> bool:
    """Return whether the campaign suspended this node's agent between the two times."""
    pids = {event["pid"] for event in history.of("agent") if event["node"] == node}
    overs = {(event["number"], event["fault"]): event["at"] for event in history.of("fault over")}
    stops = [event for event in history.of("fault") if event["kind"] == "agent_stop" and event["pid"] in pids]
    return any(it["at"] < end and overs.get((it["number"], it["fault"]), end) > begin for it in stops)


def _restarts(history: History, wave: FaultWave) -> tuple[int, int]:
    """Return the minimum and maximum number of failures to be counted. Real programs, which do not record SIGTERM, fail
    as soon as they cannot reach a peer."""
    return wave.restarts() if all(worker.says for worker in history.workers) else wave.restarts(0.0)


def _counted(history: History, older: SeenRound, newer: SeenRound) -> int:
    """Return how many failures were counted between two consecutive rounds."""
    ended = {event["node"] for event in history.of("agent ended") if event["at"] < newer.started}
    hosted = any(event["hosted"] for event in history.of("job"))
    forgotten = hosted and older.nodes <= ended and newer.restart < older.restart
    return newer.restart - (0 if forgotten else older.restart)


def _counted_once(history: History) -> Iterator[tuple[str, float]]:
    for older, newer in pairwise(history.rounds):
        if not 0 <= _counted(history, older, newer) <= 1:
            yield f"the restart count changed from {older.restart} to {newer.restart}", newer.started
    for span, wave, mine, before in _waves(history):
        if not mine or before is None:
            continue
        counted = sum(_counted(history, older, newer) for older, newer in pairwise([before, *mine]))
        least, most = _restarts(history, wave)
        if not least <= counted <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            yield f"{_of(wave)}: {counted} failures were counted, expected {expected}", span.begun


def _healthy(history: History) -> Iterator[tuple[str, float]]:
    struck = {event["pid"] for event in history.of("fault")}
    bereft: dict[str, float] = {}
    for event in history.of("agent ended"):
        bereft[event["node"]] = event["at"]
    alive = {pid for event in history.of("whole") for pid in event["alive"]}
    gone_by = {event["at"]: set(event["alive"]) for event in history.of("whole")}
    hurried = [(event["node"], event["at"]) for event in history.of("logged") if event["event"] == "grace cut short"]
    for worker in history.workers:
        if worker.signalled or worker.ended or worker.pid in struck or not worker.says:
            continue
        lost = next((at for at, there in gone_by.items() if at > worker.started and worker.pid not in there), None)
        if lost is None:
            continue
        died = bereft.get(worker.node)
        if any(node == worker.node and worker.started < at < lost for node, at in hurried):
            continue  # SIGKILL immediately followed SIGTERM
        if died is None or died > lost:
            yield f"worker {worker.pid} of {worker.node} was killed without SIGTERM while its agent was alive", lost
    for event in history.of("whole"):
        current = [one for one in history.rounds if one.started < event["at"]][-1]
        own = {worker.pid for worker in current.workers.values()}
        if old := sorted((alive & set(event["alive"])) - own):
            yield f"workers {old} of an earlier round are still running during {current.port}", event["at"]


def _checkpoint(history: History) -> Iterator[tuple[str, float]]:
    best = 0
    for event in history.of("saved", "met"):
        if event["what"] == "saved":
            best = event["step"] if history.under_way(event) else max(best, event["step"])
        elif event["rank"] == 0 and event["step"] < best:
            yield f"{event['group']} resumed at step {event['step']}, although step {best} had been saved", event["at"]


def _same_step(history: History) -> Iterator[tuple[str, float]]:
    steps: dict[str, set[int]] = {}
    for event in history.of("stopped"):
        steps.setdefault(event["group"], set()).add(event["step"])
        if len(found := steps[event["group"]]) > 1:
            yield f"the workers of {event['group']} stopped at different steps: {sorted(found)}", event["at"]
    for event in history.of("step"):
        if event["step"] >= min(steps.get(event["group"], {event["step"] + 1})):
            yield f"{event['group']} took step {event['step']}, at which its workers stopped", event["at"]


def _recovery(history: History) -> Iterator[tuple[str, float]]:
    for event in history.of("not whole", "not formed", "not finished"):
        yield f"{event['what']} within {event['limit_s']:.0f} s: {event.get('why', '')}", event["at"]


def _exit_code(history: History) -> Iterator[tuple[str, float]]:
    for event in history.of("agent ended"):
        if event["code"] not in event["expected"]:
            expected = " or ".join(map(str, event["expected"])) or "no exit"
            yield f"{event['node']} exited with code {event['code']}, expected {expected}: {event['last']}", event["at"]


def _right_cause(history: History) -> Iterator[tuple[str, float]]:
    decisions = [event for event in history.of("logged") if event["event"] == "restart decided"]
    for span, wave, _, _ in _waves(history):
        if _restarts(history, wave)[1]:
            continue
        for event in decisions:
            if span.begun <= event["at"] < span.until and event["cause"] in ("failure", "hang"):
                yield f"{_of(wave)}: reported as {event['cause']}: {event['reason']}", event["at"]


def _left_over(history: History) -> Iterator[tuple[str, float]]:
    # After a power loss, or if no process could clean up, files may remain.
    untidy = {event["place"] for event in history.of("fault")
              if event["kind"] in ("machine_off", "machine_empty", "guardian_kill", "guardian_stop", "disk_full",
                                   "disk_read_only")}  # fmt: skip
    for event in history.of("left"):
        if event["kind"] != "file" or event["place"] not in untidy:
            yield f"{event['kind']} left behind: {event['name']}", event["at"]
    first: dict[int, dict[str, int]] = {}
    last: dict[int, tuple[float, dict[str, int]]] = {}
    for event in history.of("holds"):
        figures = {name: event[name] for name in ("files", "threads", "memory")}
        first.setdefault(event["pid"], figures)
        last[event["pid"]] = event["at"], figures
    for name, margin in (("files", MORE_FILES), ("threads", MORE_THREADS), ("memory", MORE_MEMORY)):
        most = max((figures[name] for figures in first.values()), default=0)  # that of the store's host, which may move
        for pid, (at, figures) in last.items():
            if figures[name] > most + margin:
                yield f"agent {pid}: {name} grew from {first[pid][name]} to {figures[name]}", at


def _of(wave: FaultWave) -> str:
    return " + ".join(fault.kind for fault in wave.faults) or "nothing"


RULES: dict[str, Callable[[History], Iterator[tuple[str, float]]]] = {
    "one group": _one_group,
    "ranks": _ranks,
    "cause": _cause,
    "counted once": _counted_once,
    "healthy": _healthy,
    "checkpoint": _checkpoint,
    "same step": _same_step,
    "recovery": _recovery,
    "exit code": _exit_code,
    "right cause": _right_cause,
    "left over": _left_over,
}

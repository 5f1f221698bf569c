"""The history of a campaign: events from its workers and agents, and the injected faults.

An event is a line of JSON with `at` (seconds since boot, by the clock that all processes share), `what` (the event's
name), and more fields. Workers write `start`, `met`, `step`, `saved`, `not saved`, `stopped`, `signal`, `twice`, `lost`
and `end`; see `worker.py`. The campaign writes:

- `agent`: an agent has started, with its `node`, `place` and `pid`
- `agent ended`: an agent has exited, with the same fields, its exit `code`, and `expected`, the exit codes that the
  injected faults allow
- `wave`: a wave has begun, with its `number`, `faults` and `quiet_s`
- `fault`: a fault was injected, with the `number` of its wave, its index there (`fault`), its `kind` and `place`, the
  `pid` of its target, and `missed`, which is true if it had no target
- `fault over`: a fault has ended, with `number` and `fault`
- `not formed`: the first round did not form within `limit_s`
- `whole`: all nodes are training again after wave `number`, with the process IDs of the running workers (`alive`) and
  the seconds since the first fault (`recovery_s`) and since the end of the last one (`healed_s`)
- `not whole`: the nodes were not training again within `limit_s`
- `holds`: an agent's resources, with its `pid`, `files`, `threads` and `memory` (bytes, without shared pages)
- `finish`: the campaign has asked the workers to finish
- `finished`, `not finished`: all agents exited within `limit_s`, or some did not
- `logged`: a line of an agent's log, with the agent's `node` and the `event`
- `left`: an item that remains at the end, with its `kind`, `name` and `place`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from elastic_testing.campaign.storm import AWAY

if TYPE_CHECKING:
    from pathlib import Path

Event = Mapping[str, Any]

HARDLY_S = 0.05
"""The number of seconds by which an effect may be recorded before its cause."""

BACK_S = 0.5
"""The maximum number of seconds that a reconnected agent takes to stop its workers, even on a busy machine."""


@dataclass
class Worker:
    """The life of one worker. Times are in seconds since boot, or None if they are unknown. `says` is true if the
    worker would record a SIGTERM."""

    pid: int
    node: str
    rank: int
    world: int
    restart: int
    started: float
    says: bool = True
    signalled: float | None = None
    ended: float | None = None
    code: int | None = None


@dataclass
class SeenRound:
    """A round, which is identified by its store. The fields are its number, if an agent has logged it, its workers by
    rank, the time of each rank's first step, and the times of its steps and checkpoints (`acts`)."""

    port: str
    number: int | None = None
    workers: dict[int, Worker] = field(default_factory=dict)
    group: str = ""
    first_steps: dict[int, float] = field(default_factory=dict)
    acts: list[float] = field(default_factory=list)

    @property
    def started(self) -> float:
        """The time at which the first worker was started."""
        return min(worker.started for worker in self.workers.values())

    @property
    def nodes(self) -> set[str]:
        """The nodes of its workers."""
        return {worker.node for worker in self.workers.values()}

    @property
    def world(self) -> int:
        """The workers' world size; the largest one if they differ."""
        return max(worker.world for worker in self.workers.values())

    @property
    def restart(self) -> int:
        """The restart count."""
        return max(worker.restart for worker in self.workers.values())

    @property
    def works_since(self) -> float | None:
        """The time of the slowest rank's first step; None if any rank has not taken a step."""
        return max(self.first_steps.values()) if len(self.first_steps) == self.world else None


@dataclass
class Span:
    """The time span of a wave, from its first fault to the first fault of the next wave."""

    number: int
    begun: float
    until: float
    event: Event


class History:
    """Events in order of time, and data derived from them."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event["at"])

    @classmethod
    def read(cls, *paths: Path) -> History:
        """Read the history from files. Incomplete last lines are ignored."""
        found = []
        for path in paths:
            whole = path.read_bytes().rpartition(b"\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return cls(found)

    def write(self, path: Path) -> None:
        """Write the history to a file, for `read`."""
        path.write_text("".join(json.dumps(event) + "\n" for event in self.events))

    def of(self, *what: str) -> list[Event]:
        """Return the events with these names."""
        return [event for event in self.events if event["what"] in what]

    @cached_property
    def workers(self) -> list[Worker]:
        """All workers that reported their start, in start order. Process IDs may be reused."""
        in_order: list[Worker] = []
        found: dict[int, Worker] = {}
        for event in self.of("start", "signal", "end"):
            pid = event["pid"]
            if event["what"] == "start":
                fields = {name: event[name] for name in ("node", "rank", "world", "restart")}
                found[pid] = Worker(pid, **fields, started=event["at"], says=event.get("says", True))
                in_order.append(found[pid])
            elif pid not in found:
                continue
            elif event["what"] == "signal":
                found[pid].signalled = event["at"]
            else:
                found[pid].ended, found[pid].code = event["at"], event["code"]
        return in_order

    @cached_property
    def rounds(self) -> list[SeenRound]:
        """The rounds in start order. A worker whose store has the address of an earlier round belongs to a new round if
        its agent logged another round for it, if its rank is already taken, or if workers of the earlier round have
        taken steps."""
        found: list[SeenRound] = []
        of_port: dict[str, SeenRound] = {}
        of_pid: dict[int, SeenRound] = {}
        workers = iter(self.workers)
        logged = [event for event in self.of("logged") if event["event"] == "workers started"]
        numbers = {(event["node"], pid): event["round"] for event in logged for pid in event["pids"]}
        for event in self.of("start", "met", "step", "saved"):
            pid = event["pid"]
            if event["what"] == "start":
                port, number = event["at_port"], numbers.get((event["node"], pid))
                known = of_port.get(port)
                is_another = known is not None and None not in (number, known.number) and number != known.number
                if known is None or is_another or event["rank"] in known.workers or known.acts:
                    of_port[port] = SeenRound(port, number)
                    found.append(of_port[port])
                of_pid[pid] = of_port[port]
                of_port[port].workers[event["rank"]] = next(workers)
            elif event["what"] == "met":
                of_pid[pid].group = event["group"]
            else:
                if event["what"] == "step":
                    of_pid[pid].first_steps.setdefault(event["rank"], event["at"])
                if not self.under_way(event):
                    of_pid[pid].acts.append(event["at"])
        return sorted(found, key=lambda each: each.started)

    def under_way(self, event: Event) -> bool:
        """Return whether a worker recorded this event just when an agent or a machine's link recovered. A pending step
        may then complete before the agent can stop the worker."""
        return any(-HARDLY_S < event["at"] - back < BACK_S for back in self._back)

    @cached_property
    def _back(self) -> list[float]:
        """The times at which disconnected or stopped nodes recovered."""
        kinds = {(event["number"], event["fault"]): event["kind"] for event in self.of("fault")}
        over = self.of("fault over")
        return [event["at"] for event in over if kinds.get((event["number"], event["fault"])) in AWAY]

    @cached_property
    def spans(self) -> list[Span]:
        """The time spans of the waves, in order."""
        waves = self.of("wave")
        ends = [*(wave["at"] for wave in waves[1:]), float("inf")]
        return [Span(wave["number"], wave["at"], end, wave) for wave, end in zip(waves, ends, strict=True)]

"""The history of a campaign: events from its workers and agents, and the injected faults.

An event is a line of JSON: `at` (seconds since boot, the same clock for all), `what`, and more fields. Workers write
`start`, `met`, `step`, `saved`, `not saved`, `stopped`, `signal`, `twice`, `lost` and `end`, see `worker.py`. The
campaign writes:

- `agent`, `agent ended`: `node`, `place`, `pid`; `code`, and `expected`: the exit codes allowed by the injected faults
- `wave`: `number`, `faults`, `quiet_s`; `fault`: `number` of the wave, `kind`, `place`, `pid` of the affected process,
  `missed`: the fault had no target; `fault over`
- `whole`: all nodes train again: `number`; `alive`: the running workers; `recovery_s` since the first fault, `healed_s`
  since the end of the last one. `not whole`: they did not within `limit_s`.
- `holds`: an agent's resources: `pid`, `files`, `threads`, `memory` (bytes); `finish`, `finished`
- `told`: a line of an agent's log, with `event`, `node`; `left`: an item that remains at the end: `name`, `place`
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
"""Seconds by which an effect may be recorded before its cause."""

BACK_S = 0.5
"""Seconds within which a reconnected agent stops its workers, even on a busy machine."""


@dataclass
class Worker:
    """The life of one worker. Times are in seconds since boot, None if unknown. `says`: whether the worker records a
    SIGTERM."""

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
    """The workers that were started with the same store, by rank, and their actions."""

    port: str
    workers: dict[int, Worker] = field(default_factory=dict)
    group: str = ""
    first_steps: dict[int, float] = field(default_factory=dict)
    acts: list[float] = field(default_factory=list)

    @property
    def started(self) -> float:
        """When the first worker was started."""
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
        """When the slowest rank made its first step; None if any rank has made none."""
        return max(self.first_steps.values()) if len(self.first_steps) == self.world else None


@dataclass
class Span:
    """The time of a wave, from its first fault to the first one of the next wave."""

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
        """All workers in start order, without those that were stopped before they reported their start. Process ids may
        be reused."""
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
        """The rounds in start order. A port that is used again belongs to a new round, if the rank already exists or
        the old round has worked."""
        found: list[SeenRound] = []
        of_port: dict[str, SeenRound] = {}
        of_pid: dict[int, SeenRound] = {}
        workers = iter(self.workers)
        for event in self.of("start", "met", "step", "saved"):
            pid = event["pid"]
            if event["what"] == "start":
                port = event["at_port"]
                known = of_port.get(port)
                if known is None or event["rank"] in known.workers or known.acts:
                    of_port[port] = SeenRound(port)
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
        """Return whether a worker did this just when its agent or its machine's link recovered. A pending step then
        completes before the agent can stop the worker."""
        return any(-HARDLY_S < event["at"] - back < BACK_S for back in self._back)

    @cached_property
    def _back(self) -> list[float]:
        """When disconnected or stopped nodes recovered."""
        kinds = {(event["number"], event["fault"]): event["kind"] for event in self.of("fault")}
        over = self.of("fault over")
        return [event["at"] for event in over if kinds.get((event["number"], event["fault"])) in AWAY]

    @cached_property
    def spans(self) -> list[Span]:
        """The waves."""
        waves = self.of("wave")
        ends = [*(wave["at"] for wave in waves[1:]), float("inf")]
        return [Span(wave["number"], wave["at"], end, wave) for wave, end in zip(waves, ends, strict=True)]

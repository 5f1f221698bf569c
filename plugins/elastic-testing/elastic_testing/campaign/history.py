"""What happened in a campaign, read from what its workers and agents wrote down and from what was done to them.

An event is a line of JSON: `at` (seconds since boot, one clock for all), `what`, and more. Workers write `start`,
`met`, `step`, `saved`, `not saved`, `signal`, `twice`, `lost` and `end`, as `worker.py` says; the campaign writes

- `agent`, `agent ended`: `node`, `place`, `pid`; `code`, and `expected`: the codes that what was done to it may give
- `wave`: `number`, and the wave; `fault`: `number` of the wave, `kind`, `place`, `pid` of what it struck, `missed`:
  there was nothing to strike; `fault over`
- `whole`: `number`; all nodes train again; `alive`: the workers that run; `recovery_s` since the first fault,
  `healed_s` since the last one was over. `not whole`: they did not within `limit_s`.
- `holds`: what an agent has: `pid`, `files`, `threads`, `memory` (bytes); `finish`, `finished`
- `told`: a line of an agent's log, with `event`, `node`; `left`: what is there after the end: `name`, `place`
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
"""By which what follows may be written down before what it follows from."""

BACK_S = 0.5
"""Within which an agent that is back has stopped its workers, also on a busy machine."""


@dataclass
class Worker:
    """The life of one. Times are None where the history has none; `says`: it would have told that it got SIGTERM."""

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
    """The workers that were started to meet at one store, by rank, and what they did there."""

    port: str
    workers: dict[int, Worker] = field(default_factory=dict)
    group: str = ""
    first_steps: dict[int, float] = field(default_factory=dict)
    acts: list[float] = field(default_factory=list)

    @property
    def started(self) -> float:
        """When the first of them was."""
        return min(worker.started for worker in self.workers.values())

    @property
    def nodes(self) -> set[str]:
        """Of its workers."""
        return {worker.node for worker in self.workers.values()}

    @property
    def world(self) -> int:
        """As its workers were told; the greatest, should they differ."""
        return max(worker.world for worker in self.workers.values())

    @property
    def restart(self) -> int:
        """How many failures had been counted."""
        return max(worker.restart for worker in self.workers.values())

    @property
    def works_since(self) -> float | None:
        """The first step of its slowest rank; None if one has made none."""
        return max(self.first_steps.values()) if len(self.first_steps) == self.world else None


@dataclass
class Span:
    """A wave: from its first fault to the first of the next one."""

    number: int
    begun: float
    until: float
    event: Event


class History:
    """Events, in the order of their times, and what follows from them."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event["at"])

    @classmethod
    def read(cls, *paths: Path) -> History:
        """From files. A line that was not finished is left out."""
        found = []
        for path in paths:
            whole = path.read_bytes().rpartition(b"\n")[0]
            found += [json.loads(line) for line in whole.splitlines()]
        return cls(found)

    def write(self, path: Path) -> None:
        """For `read`."""
        path.write_text("".join(json.dumps(event) + "\n" for event in self.events))

    def of(self, *what: str) -> list[Event]:
        """The events of these names."""
        return [event for event in self.events if event["what"] in what]

    @cached_property
    def workers(self) -> list[Worker]:
        """All workers in start order. Two workers may have the same process id. Workers that were
        stopped before they reported their start are left out."""
        in_order: list[Worker] = []
        found: dict[int, Worker] = {}
        for event in self.of("start", "signal", "end"):
            pid = event["pid"]
            if event["what"] == "start":
                told = {name: event[name] for name in ("node", "rank", "world", "restart")}
                found[pid] = Worker(pid, **told, started=event["at"], says=event.get("says", True))
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
        """In the order in which they began. A port that comes a second time is another round's: its ranks are there
        already, or have worked."""
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
        """Whether a worker did this as an agent woke, or a machine had its link again: a step that was under way ends
        then, before the agent can stop anybody."""
        return any(-HARDLY_S < event["at"] - back < BACK_S for back in self._back)

    @cached_property
    def _back(self) -> list[float]:
        """When nodes that were out of touch could go on."""
        kinds = {(event["number"], event["fault"]): event["kind"] for event in self.of("fault")}
        over = self.of("fault over")
        return [event["at"] for event in over if kinds.get((event["number"], event["fault"])) in AWAY]

    @cached_property
    def spans(self) -> list[Span]:
        """The waves."""
        waves = self.of("wave")
        ends = [*(wave["at"] for wave in waves[1:]), float("inf")]
        return [Span(wave["number"], wave["at"], end, wave) for wave, end in zip(waves, ends, strict=True)]

"""Sums over the whole life of the agent, from what it tells of each change: it keeps only the last rounds itself."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.interfaces.health import AgentStatus, Recovery

BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of the histograms' buckets, in seconds."""

PARTS = ("detect", "stop", "rendezvous", "start")


@dataclass
class Histogram:
    """How often something took how long."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus has them."""
        found, upto = [], 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            upto += count
            found.append((bound, float(upto)))
        return found


class Totals:
    """Told of every status, in order."""

    def __init__(self) -> None:
        self.recoveries: dict[tuple[str, str], Histogram] = {}
        self.rendezvous = Histogram()
        self._recovery = 0
        self._round = 0

    def note(self, status: AgentStatus) -> None:
        """The agent's status is this now."""
        for formed in status.rounds:
            if formed.number > self._round:
                self._round = formed.number
                self.rendezvous.observe(formed.rendezvous)
        for recovery in status.recoveries:
            if recovery.round > self._recovery:
                self._recovery = recovery.round
                self._note_recovery(recovery)

    def _note_recovery(self, recovery: Recovery) -> None:
        for part in PARTS:
            histogram = self.recoveries.setdefault((recovery.cause, part), Histogram())
            histogram.observe(getattr(recovery, part))

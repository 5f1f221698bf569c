"""Who is late: counters of others, timed on the observer's own clock. No clock of one machine is compared with
another's, and an observer that could not look has seen nothing: it must have looked often enough, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.clock import Instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.clock import Duration


@dataclass(frozen=True)
class Counter:
    """A counter as last seen: its value, when it was first seen with that value, how many looks found it still the
    same, and when the last of these was; None before the first."""

    value: int
    since: Instant
    unchanged: int = 0
    looked: Instant | None = None

    def seen(self, value: int, now: Instant, interval: Duration) -> Counter:
        """After another look. Looks closer together than half an interval are one: after an outage, in which nobody
        could beat, many looks in a row have still seen only one moment."""
        if value != self.value:
            return Counter(value, now)
        if now - (self.since if self.looked is None else self.looked) < 0.5 * interval:
            return self
        return Counter(value, self.since, self.unchanged + 1, now)


@dataclass(frozen=True)
class Liveness:
    """All counters that a node observes.

    Args:
        interval: seconds between two beats of a live node.
        attempts: beats that may fail to appear.
    """

    interval: Duration
    attempts: int
    counters: Mapping[str, Counter] = field(default_factory=dict)

    def observed(self, values: Mapping[str, int], now: Instant) -> Liveness:
        """After a look at all counters that there are; those that are not there any more are forgotten."""
        counters = {
            key: self.counters[key].seen(value, now, self.interval) if key in self.counters else Counter(value, now)
            for key, value in values.items()
        }
        return Liveness(self.interval, self.attempts, counters)

    def presumed_late(self, values: Mapping[str, int], now: Instant, doubts: int = 0) -> Liveness:
        """As if these counters had been watched for long and had stood still; the next beat refutes it. They are late
        after `doubts` more looks."""
        since = Instant(now - self.interval * self.attempts)
        unchanged = max(self.attempts - 1 - doubts, 0)
        late = {key: Counter(value, since, unchanged, now) for key, value in values.items()}
        return Liveness(self.interval, self.attempts, {**self.counters, **late})

    def late(self, key: str, now: Instant) -> bool:
        """Whether the counter has stood still for too long, by the clock and by the number of looks."""
        counter = self.counters.get(key)
        if counter is None:
            return False
        return counter.unchanged >= self.attempts - 1 and now - counter.since >= self.interval * self.attempts

    def age(self, key: str, now: Instant) -> Duration | None:
        """Seconds since the counter was first seen as it is."""
        counter = self.counters.get(key)
        return None if counter is None else now - counter.since

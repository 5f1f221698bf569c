"""Looking at a job: reads again and again until everybody gave a beat, or has had the time for it. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.operate.sight import looked

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.operate.sight import Sight

_LOOKS_PER_INTERVAL = 5
_FOR_ONE_BEAT = 1.5  # intervals


@dataclass(frozen=True)
class Watcher:
    """See above. Used from one thread at a time.

    Args:
        pause: waits for so many seconds.
    """

    backend: RosterBackend
    clock: Clock
    pause: Callable[[Duration], object]

    def look(self, sight: Sight) -> Sight:
        """One look more."""
        announced = self.backend.roster()  # before the state, which then is at least as new
        found = self.backend.get_state()
        return looked(sight, None if found is None else found[0], announced, self.clock.now())

    def watch(self, sight: Sight) -> Sight:
        """Look until every beat was seen, or for the time after which a silent node is called gone. Those that the job
        has called gone get the time for one beat."""
        while sight.silent and sight.now < _deadline(sight):
            self.pause(between_looks(sight))
            sight = self.look(sight)
        return sight


def _deadline(sight: Sight) -> Instant:
    if sight.silent - sight.past:
        return later(sight.since, longest(sight))
    return later(sight.since, _FOR_ONE_BEAT * sight.observation.interval)


def between_looks(sight: Sight) -> Duration:
    """Seconds."""
    return sight.observation.interval / _LOOKS_PER_INTERVAL


def longest(sight: Sight) -> Duration:
    """Seconds that `watch` may take, the answers of the store aside."""
    return sight.observation.interval * (sight.observation.attempts + 0.5)

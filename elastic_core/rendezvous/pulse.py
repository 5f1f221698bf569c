"""The leaders' pulse as one node feels it: a counter that whoever leads counts up, and what the backend knows beyond
that. It says when the node steps in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from elastic_core.rendezvous.liveness import Counter

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.rendezvous.participant import Lead

_DOUBTFUL = 0.5  # windows of silence of whoever leads, after which the line behind it is counted anew
_ENOUGH = 2  # looks at a counter that stands still


class Felt(NamedTuple):
    """What a look at the counter says. `doubtful`: once in a silence, those who were older may have left since.
    `silent`: nobody leads."""

    doubtful: bool
    silent: bool


class Pulse:
    """Used from one thread.

    Args:
        window: seconds of silence after which a node is held to be gone.
        interval: seconds between two beats.
    """

    def __init__(self, window: Duration, interval: Duration) -> None:
        self._window = window
        self._interval = interval
        self._counter: Counter | None = None
        self._doubted = False
        self._vacant_since: Instant | None = None

    def counted(self, value: int | None, now: Instant) -> bool:
        """This node leads, and has counted up. Whether another counts too."""
        others = self._counter is not None and value is not None and value > self._counter.value + 1
        self._counter = None if value is None else Counter(value, now)
        return others

    def restart(self, value: int | None, now: Instant) -> None:
        """This node has begun to lead."""
        self._counter = None if value is None else Counter(value, now)

    def felt(self, value: int, now: Instant, place: Lead) -> Felt:
        """This node does not lead, and has looked."""
        before = self._counter or Counter(value, now)
        self._counter = before.seen(value, now, self._interval)
        silence = now - self._counter.since
        if self._counter.value != before.value:
            self._doubted = False
        if self._counter.unchanged < _ENOUGH:
            return Felt(doubtful=False, silent=False)
        doubtful = silence >= _DOUBTFUL * self._window and not self._doubted
        self._doubted = self._doubted or doubtful
        return Felt(doubtful, silence >= place.patience * self._window)

    def vacated(self, seen: bool, now: Instant, place: Lead) -> bool:
        """Whether it is this node's turn to lead, when the backend has `seen` whoever led go. The next in line need not
        wait for silence, the others wait for the next."""
        if not seen:
            self._vacant_since = None
            return False
        if self._vacant_since is None:
            self._vacant_since = now
        return now - self._vacant_since >= (place.patience - 1.0) * self._window

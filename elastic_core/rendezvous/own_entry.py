"""The entry of this node: what it wants to announce, what stands in the store, and its beats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.clock import Instant, later
from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.codec import encoded_entry

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.known import Known
    from elastic_core.rendezvous.line import Line
    from elastic_core.rendezvous.reach import Reach
    from elastic_core.rendezvous.state_copy import StateCopy


class OwnEntry:
    """Used from one thread; `wanted` may be set by any.

    Args:
        interval: seconds between two beats.

    Attributes:
        wanted: what is to stand in the store; None: nothing.
        next_beat: when the next beat is due.
    """

    def __init__(
        self,
        key: str,
        backend: RosterBackend,
        reach: Reach,
        known: Known,
        copy: StateCopy,
        line: Line,
        clock: Clock,
        interval: Duration,
    ) -> None:
        self.wanted: Entry | None = None
        self.next_beat = Instant(float("-inf"))
        self._key = key
        self._backend = backend
        self._reach = reach
        self._known = known
        self._copy = copy
        self._line = line
        self._clock = clock
        self._interval = interval
        self._stood: Entry | None = None
        self._beats = 0

    def keep(self) -> None:
        """Announce what is wanted, unless it stands there."""
        wanted = self.wanted
        if wanted is None or wanted == self._known.view.announced or self._outdated(wanted):
            return
        self._announce(wanted)

    def restore(self) -> None:
        """After an outage what stood there before stands there again first, also when the state cannot be read now."""
        stood = self._stood
        if self.wanted is None or self._known.view.announced is not None or stood is None:
            return
        if stood.after < self._known.seated_in and self._known.state_news:
            try:
                self._copy.read()
            except RendezvousStateError:
                self._announce(stood)
                raise
        if not self._outdated(stood):
            self._announce(stood)

    def withdraw(self) -> None:
        """Take it back, unless one is wanted again."""
        if self.wanted is None:
            self._line.leading = False
            self._reach.ask(lambda: self._backend.withdraw(self._key))
            self._stood = None
            self._known.show(replace(self._known.view, announced=None))

    def beat(self, now: Instant) -> None:
        """Beat if it is time, and feel the pulse of whoever leads."""
        if self.wanted is None or self._known.view.announced is None or now < self.next_beat:
            return
        place = self._line.place()
        look = place.near or self._beats % 2 == 0
        pulse = self._reach.ask(lambda: self._backend.beat(self._key, self._line.leading, look))
        self._beats += 1
        self.next_beat = later(now, self._interval)
        self._known.roster_news = True  # beats are looked at once in an interval, also when nobody came or went
        if pulse is not None:
            self._line.feel(pulse, self._clock.now(), place)

    def _outdated(self, entry: Entry) -> bool:
        """Whether the entry led to a round that is past: a node that slept while the others went on without it would
        look like one that waits for the next, and be given a seat before it knows."""
        state = self._known.view.state
        return state is not None and entry.after < self._known.seated_in < state.round

    def _announce(self, entry: Entry) -> None:
        self._line.older = self._reach.ask(lambda: self._backend.announce(self._key, encoded_entry(entry)))
        if self._known.view.announced is None:
            self.next_beat = later(self._clock.now(), self._interval)
        self._known.roster_news = True
        self._stood = entry
        self._known.show(replace(self._known.view, announced=entry))

"""The line of those who may lead, as one node stands in it: it says when the node steps in and when it steps back.
Who leads decides about the state for all; safety never depends on there being only one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.log import get_logger
from elastic_core.rendezvous.lookout import beats_of
from elastic_core.rendezvous.participant import Lead, lead
from elastic_core.rendezvous.pulse import Pulse

if TYPE_CHECKING:
    from elastic_core.clock import Instant
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.rendezvous.known import Known
    from elastic_core.rendezvous.lookout import Lookout
    from elastic_core.rendezvous.reach import Reach
    from elastic_core.rendezvous.settings import RendezvousSettings


class Line:
    """Used from one thread; `leading` may be read by any.

    Args:
        key: of this node's entry.

    Attributes:
        leading: whether this node leads, as far as it knows.
        older: how many entries of nodes that wait are older than this node's, about.
    """

    def __init__(
        self,
        key: str,
        backend: RosterBackend,
        reach: Reach,
        known: Known,
        lookout: Lookout,
        settings: RendezvousSettings,
    ) -> None:
        self.leading = False
        self.older = 0
        self._key = key
        self._backend = backend
        self._reach = reach
        self._known = known
        self._lookout = lookout
        self._pulse = Pulse(settings.window, settings.keep_alive_interval)

    def place(self) -> Lead:
        """This node's place."""
        return lead(self._known.state, self._key, self.older)

    def is_first(self) -> bool:
        """Whether this node leads now: the first in line does so without waiting for silence."""
        if not self.leading and self._known.view.announced is not None and self.place().position == 0:
            self._lead()
        return self.leading

    def feel(self, value: int, now: Instant, place: Lead) -> None:
        """Who leads counts up the leaders' counter. When it stands still, the next in line steps in; when another
        counts too, one of two steps back."""
        if self.leading:
            if self._pulse.counted(value, now) and place.position > 0:
                self.leading = False
            return
        felt = self._pulse.felt(value, now, place)
        self._known.line_news = self._known.line_news or felt.doubtful
        if felt.silent:
            self._step_in(now, "the node that led is silent")

    def fill_vacancy(self, now: Instant) -> None:
        """Step in if the backend has seen whoever led go, and this node is the next."""
        if self.leading or self._known.view.announced is None:
            return
        if self._pulse.vacated(self._backend.vacant, now, self.place()):
            self._step_in(now, "the node that led is gone")

    def recount(self) -> None:
        """All members of the last round have left and nobody leads by rank, or whoever leads is silent. Those who wait
        look once who is the oldest of them: many who were older may have left since."""
        state = self._known.state
        keys = [item.key for item in self._reach.ask(self._backend.roster)]
        older = keys[: keys.index(self._key)] if self._key in keys else keys
        self.older = sum(not state.seated(key) for key in older)
        self._known.line_news = False

    def _step_in(self, now: Instant, reason: str) -> None:
        get_logger().info("leads now", reason=reason)
        self._presume_late(now)
        # Counted before anything is written: what we write may move the next in line up, and it must not find that
        # the leaders' counter stands still.
        self._pulse.restart(self._reach.ask(lambda: self._backend.beat(self._key, leading=True, look=True)), now)
        self._lead()

    def _lead(self) -> None:
        self.leading = self._known.roster_news = True

    def _presume_late(self, now: Instant) -> None:
        beats = beats_of(self._reach.ask(self._backend.roster))
        state = self._known.state
        line = [key for key in state.surviving_keys if key not in state.draining]
        line += [key for key in beats if key not in line]
        before = line[: line.index(self._key)] if self._key in line else []
        self._lookout.presume_late(before[:1], before[1:], beats, now)

"""The lookout: what a node sees of the others, from one look at the store to the next. No I/O; what stands in the store
comes in, and times are the node's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import Instant, later
from elastic_core.errors import RendezvousStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.absence import Absence
from elastic_core.rendezvous.codec import decoded_entry
from elastic_core.rendezvous.decide import enough
from elastic_core.rendezvous.liveness import Liveness
from elastic_core.rendezvous.roster import Seen, waiting

if TYPE_CHECKING:
    from elastic_core.interfaces.backend import Announced
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.state import State

_DOUBTS = 2  # looks at nodes that may be late, by one that has only just begun to look


class Lookout:
    """Used from one thread; `roster` and `liveness` may be read by any.

    Args:
        key: of this node's own entry.

    Attributes:
        roster: the entries as seen last.
        liveness: the beats as seen last.
    """

    def __init__(self, key: str, settings: RendezvousSettings) -> None:
        self.roster: Roster = ()
        self.liveness = Liveness(settings.keep_alive_interval, settings.keep_alive_max_attempt)
        self._key = key
        self._settings = settings
        self._announced: tuple[Announced, ...] = ()
        self._beats: dict[str, int] = {}
        self._present: list[str] = []
        self._leased = False
        self._absence = Absence()
        self._first_seen: dict[str, Instant] = {}
        self._entries: dict[bytes, Entry | None] = {}
        self._enough: tuple[int, Instant] | None = None

    def look(self, announced: tuple[Announced, ...]) -> bool:
        """Take in what stands in the store; `judge` says what to make of it. Whether the store, if it has leases, has
        dropped this node's own entry."""
        self._announced = announced
        self._beats = beats_of(announced)
        self._leased = self._leased or len(self._beats) < len(announced)
        self._present = [item.key for item in announced]
        # One without any entry has dropped even ours, which only a store with leases does.
        return (self._leased or not announced) and self._absence.dropped(self._key, self._present)

    def judge(self, state: State, now: Instant) -> None:
        """Who of those taken in is there, since when, and who is late; who is missing, of the last round."""
        if self._leased or not self._present:
            self._absence = self._absence.looked(self._present, state.surviving_keys, now)
        self.liveness = self.liveness.observed(self._beats, now)
        self._first_seen = {item.key: self._first_seen.get(item.key, now) for item in self._announced}
        self._entries = {item.entry: self._decoded(item) for item in self._announced}
        self.roster = tuple(
            Seen(entry, self.liveness.late(item.key, now), self._first_seen[item.key])
            for item in self._announced
            if (entry := self._entries[item.entry]) is not None
        )

    def _decoded(self, announced: Announced) -> Entry | None:
        """The entry; None for one that cannot be read, whose node then cannot take part: one bad entry must not stop
        the others."""
        if announced.entry in self._entries:
            return self._entries[announced.entry]
        try:
            return decoded_entry(announced.entry)
        except RendezvousStateError as error:
            get_logger().warning("entry not readable", node=announced.key, reason=str(error))
            return None

    def presume_late(self, first: list[str], between: list[str], beats: dict[str, int], now: Instant) -> None:
        """Those first in line would lead if they lived: they are late, until they beat again. Those between them and
        this node may be about to step in themselves, so that there is some doubt."""
        self.liveness = self.liveness.presumed_late({k: beats[k] for k in between if k in beats}, now, _DOUBTS)
        self.liveness = self.liveness.presumed_late({k: beats[k] for k in first if k in beats}, now)

    def expect_all_back(self, now: Instant) -> None:
        """Until everybody had the time to announce themselves anew, who has no entry is not lost."""
        self._absence = self._absence.all_back_by(later(now, self._settings.window))

    @property
    def settled(self) -> Instant:
        """Until then nobody is lost for having no entry."""
        return self._absence.until

    def enough_since(self, state: State, now: Instant) -> Instant | None:
        """Since when enough nodes have been ready, as this node has seen it."""
        if not enough(self.roster, state, self._settings):
            self._enough = None
        elif self._enough is None or self._enough[0] != state.round:
            self._enough = (state.round, now)
        return None if self._enough is None else self._enough[1]

    def count_waiting(self, state: State) -> int:
        """How many nodes wait that the next round has room for."""
        room = self._settings.max_nodes - state.survivors if state.open else self._settings.max_nodes
        return min(len(waiting(self.roster, state)), max(room, 0))


def beats_of(announced: tuple[Announced, ...]) -> dict[str, int]:
    """The beats of those entries that have some: they have none where the store minds who lives."""
    return {item.key: item.beats for item in announced if item.beats is not None}

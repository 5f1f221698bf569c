"""An immutable model of a rendezvous store, for simulations. States and entries are not encoded as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_core.plugin import EntryDroppedError
from elastic_core.rendezvous.effects import Announce, Heartbeat, ReadRoster, ReadState, Withdraw, WriteState
from elastic_core.rendezvous.roster import Registration

if TYPE_CHECKING:
    from elastic_core.rendezvous.effects import Operation
    from elastic_core.rendezvous.model import Entry, State


class Row(NamedTuple):
    """One entry, the number of its last announcement, and its heartbeat counter."""

    entry: Entry
    number: int
    beats: int = 0


class StoreModel(NamedTuple):
    """The content of a job's store.

    Args:
        state: None before the first write.
        writes: number of writes to the state. It is also the token of the last one.
        rows: the entries by key, oldest first.
        lead: how many heartbeats leaders have sent.
        rosters: a counter that is incremented whenever the roster changes.
        leases: whether the store drops the entries of nodes that send no heartbeats, and therefore shows no heartbeat
            counters. The `World` drops these entries.
        fenced: whether the store refuses outdated operations: writes of the state with an old token, and announcements
            older than the last one. It is set to false only to plant a defect.
        last: the number of the last announcement of each key.
    """

    state: State | None = None
    writes: int = 0
    rows: tuple[tuple[str, Row], ...] = ()
    lead: int = 0
    rosters: int = 0
    leases: bool = False
    fenced: bool = True
    last: tuple[tuple[str, int], ...] = ()

    @property
    def token(self) -> int | None:
        """The token of the last write; None if there is no state."""
        return None if self.state is None else self.writes

    def performed(self, operation: Operation, number: int = 0) -> tuple[StoreModel, Any]:
        """Return the store after an operation, and the operation's result. `number` must increase with every operation
        of a node. Raises the same errors as a backend."""
        if isinstance(operation, ReadState):
            return self, (self.state, self.token)
        if isinstance(operation, WriteState):
            return self._written(operation)
        if isinstance(operation, ReadRoster):
            shown = (Registration(k, row.entry, None if self.leases else row.beats) for k, row in self.rows)
            return self, tuple(shown)
        if isinstance(operation, Announce):
            return self._announced(operation.entry, number)
        if isinstance(operation, Withdraw):
            return self.dropped(operation.key), None
        assert isinstance(operation, Heartbeat), "the model's store never moves to another host"
        return self._beaten(operation)

    def _written(self, operation: WriteState) -> tuple[StoreModel, Any]:
        if self.fenced and operation.token != self.token:
            return self, None if self.state is None else (self.state, self.writes, False)
        after = self._replace(state=operation.state, writes=self.writes + 1)
        return after, (operation.state, after.writes, True)

    def _announced(self, entry: Entry, number: int) -> tuple[StoreModel, int]:
        rows, last = dict(self.rows), dict(self.last)
        place = next((i for i, (key, _) in enumerate(self.rows) if key == entry.key), len(rows))
        if self.fenced and last.get(entry.key, -1) >= number:
            return self, place
        beats = rows[entry.key].beats + 1 if entry.key in rows else 0
        rows[entry.key] = Row(entry, number, beats)
        last[entry.key] = number
        changed = self._replace(rows=tuple(rows.items()), last=tuple(last.items()), rosters=self.rosters + 1)
        return changed, place

    def _beaten(self, operation: Heartbeat) -> tuple[StoreModel, int | None]:
        rows = dict(self.rows)
        row = rows.get(operation.key)
        if row is None:
            raise EntryDroppedError("the entry of this node was dropped")
        rows[operation.key] = row._replace(beats=row.beats + 1)
        after = self._replace(rows=tuple(rows.items()), lead=self.lead + operation.leading)
        return after, after.lead if operation.leading or operation.look else None

    def dropped(self, key: str) -> StoreModel:
        """Return the store without the entry of this key."""
        rows = tuple(item for item in self.rows if item[0] != key)
        return self if len(rows) == len(self.rows) else self._replace(rows=rows, rosters=self.rosters + 1)

    def forgotten(self) -> StoreModel:
        """Return the store after it has lost its data, as happens when its host restarts."""
        return StoreModel(None, self.writes + 1, (), 0, self.rosters + 1, self.leases, self.fenced)

    def beats(self, key: str) -> int | None:
        """Return the heartbeat counter of this key, or None if it has no entry."""
        row = dict(self.rows).get(key)
        return None if row is None else row.beats

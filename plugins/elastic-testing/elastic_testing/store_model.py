"""What a rendezvous backend does, as a value: for worlds in which everything that may go wrong is tried. Nodes do not
notice the difference; here states and entries need not become bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_core.interfaces.backend import EntryDroppedError
from elastic_core.rendezvous.effects import (
    Announce,
    Beat,
    HandOver,
    ReadRoster,
    ReadState,
    Registration,
    Withdraw,
    WriteState,
)

if TYPE_CHECKING:
    from elastic_core.rendezvous.effects import Operation
    from elastic_core.rendezvous.model import Entry, State


class Row(NamedTuple):
    """One entry, the number of the announcement that put it there, and its beats."""

    entry: Entry
    number: int
    beats: int = 0


class StoreModel(NamedTuple):
    """All that stands in the store of one job.

    Args:
        state: None before the first write.
        writes: how often it was written; the token.
        rows: the entries, oldest first, by key.
        lead: the leaders' counter.
        rosters: grows with everybody who comes, goes, or announces something new.
        leases: whether it drops the entries of nodes that do not beat (a world does); it shows no beats then.
        fenced: whether it refuses what came too late: writes of the state in the place of another, and announcements
            after newer ones. False only to plant a fault.
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
        """Of the last write; None if there is no state."""
        return None if self.state is None else self.writes

    def performed(self, operation: Operation, number: int = 0) -> tuple[StoreModel, Any]:
        """The store after an operation, and its answer. `number`: grows with the operations of one node. Raises what a
        backend raises."""
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
        if isinstance(operation, HandOver):
            return self.moved(), True
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

    def _beaten(self, operation: Beat) -> tuple[StoreModel, int | None]:
        rows = dict(self.rows)
        row = rows.get(operation.key)
        if row is None:
            raise EntryDroppedError("expected the entry of this node, found that it was dropped")
        rows[operation.key] = row._replace(beats=row.beats + 1)
        after = self._replace(rows=tuple(rows.items()), lead=self.lead + operation.leading)
        return after, after.lead if operation.leading or operation.look else None

    def dropped(self, key: str) -> StoreModel:
        """Without the entry of this key."""
        rows = tuple(item for item in self.rows if item[0] != key)
        return self if len(rows) == len(self.rows) else self._replace(rows=rows, rosters=self.rosters + 1)

    def moved(self) -> StoreModel:
        """After another node has taken it over: the state is there under another token, and nodes announce themselves
        anew."""
        return self._replace(writes=self.writes + 1, rows=(), lead=0, rosters=self.rosters + 1)

    def forgotten(self) -> StoreModel:
        """After it has lost its memory, as one whose host was started anew."""
        return StoreModel(None, self.writes + 1, (), 0, self.rosters + 1, self.leases, self.fenced)

    def beats(self, key: str) -> int | None:
        """Of this key; None without an entry."""
        row = dict(self.rows).get(key)
        return None if row is None else row.beats

"""Writes that count once, even when the answer to one was lost.

A write whose answer does not come may have been carried out, may not, or may be carried out later: it waits in a
member that was stopped. Sending it again as it is could count it twice. So every write of ours also writes a *note*, a
key that nobody else writes, on the condition that the note is still the one of the write before:

- of all copies of a write that are under way, one at most finds the note as it was: the others do nothing;
- whoever sends a copy and finds the note changed knows that an earlier copy was carried out;
- if a write is refused by its own conditions while copies of it may be under way (a stopped member could let one
  through once the conditions hold again, after we said that nothing was written), the note is changed first: that
  *fences* the copies off.

This costs no round trip: condition and note travel in the transaction. A note serves one write at a time; threads that
write at the same time take different ones. A write that was given up with its answer outstanding takes its note with
it. At the end the notes are deleted, but for those whose very first write may have a copy under way: that one's
condition is that there is no note.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import deque
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_etcd.client.errors import EtcdUnreachable
from elastic_etcd.client.values import Committed, Compare, Delete, Field, Get, Put, Transaction, end_of
from elastic_etcd.store_keys import MOST_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.clock import Clock
    from elastic_etcd.client.interface import Client
    from elastic_etcd.client.values import KeyValue, Operation, Range
    from elastic_etcd.store_deadline import Deadline

_WRITTEN = b"written"
_FENCED = b"fenced"
_PAUSE = 0.1  # seconds before a member is asked again that refuses connections at once


class Note:
    """The key of a note and the revision of its last write; 0 before the first."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.revision = 0

    def unchanged(self) -> Compare:
        return Compare(self.key, Field.MODIFIED, self.revision)


class Refusal:
    """The conditions of a write did not hold: nothing was written, nor will be. `found` are the answers to what was
    asked for that case."""

    def __init__(self, found: tuple[Range, ...]) -> None:
        self.found = found

    @property
    def first(self) -> KeyValue | None:
        """The only key of the first answer; None if it does not exist."""
        return self.found[0].first


class Writer:
    """Writes for one store, from any number of threads.

    Args:
        prefix: of the notes.
        lease: that the notes are attached to; 0 for none: then `forget` deletes them.
    """

    def __init__(self, client: Client, prefix: bytes, lease: int = 0, clock: Clock | None = None) -> None:
        self._client = client
        self._prefix = prefix + uuid.uuid4().hex.encode() + b"/"
        self._lease = lease
        self._clock: Clock = clock or SystemClock()
        self._numbers = itertools.count()
        self._idle: deque[Note] = deque()
        self._kept: set[bytes] = set()  # keys of notes that are not to be deleted
        self._closed = threading.Event()

    def write(
        self, conditions: Sequence[Compare], writes: Sequence[Operation], instead: Sequence[Get], deadline: Deadline
    ) -> Committed | Refusal:
        """Carry the writes out, if the conditions hold, exactly once. What is returned has the write's revision.

        Args:
            instead: what to read if the conditions do not hold; nothing without any.
            deadline: until when it is tried again while no member answers.

        Raises:
            EtcdUnreachable: it could not be done in time; with `landed`, it may have been, or be yet.
            EtcdRefused, EtcdClosed.
        """
        try:
            note = self._idle.pop()
        except IndexError:  # asking first would be too early: another thread may take the last one
            note = self._new_note()
        outcome = self._carried_out(note, conditions, writes, instead, deadline)
        self._idle.append(note)  # after an error it is out of use
        return outcome

    def pause(self, seconds: float) -> None:
        """Wait; `forget` ends it."""
        self._closed.wait(seconds)

    def forget(self) -> None:
        """Delete the notes: nothing will be written any more."""
        self._closed.set()
        kept = sorted(self._kept)
        starts, ends = [self._prefix, *(key + b"\0" for key in kept)], [*kept, end_of(self._prefix)]
        deletes = [Delete(start, end) for start, end in zip(starts, ends, strict=True)]
        for first in range(0, len(deletes), MOST_OPERATIONS):
            self._client.transact(Transaction((), deletes[first : first + MOST_OPERATIONS]))

    def _new_note(self) -> Note:
        return Note(self._prefix + b"%d" % next(self._numbers))

    def _carried_out(
        self,
        note: Note,
        conditions: Sequence[Compare],
        writes: Sequence[Operation],
        instead: Sequence[Get],
        deadline: Deadline,
    ) -> Committed | Refusal:
        otherwise = (Get(note.key), *instead) if conditions else ()
        transaction = Transaction((note.unchanged(), *conditions), (*writes, self._mark(note, _WRITTEN)), otherwise)
        done, outstanding = self._answered(note, transaction, deadline)
        if done.succeeded:
            note.revision = done.revision
            return done
        if not conditions:  # then it failed for its note, which the fence finds changed; to ask every time costs more
            return self._fenced_off(note, deadline) or Refusal(())
        landed = _landed(note, done.ranges[0].first)
        if landed is None and outstanding:
            landed = self._fenced_off(note, deadline)
        return landed or Refusal(done.ranges[1:])

    def _answered(
        self, note: Note, transaction: Transaction, deadline: Deadline, outstanding: bool = False
    ) -> tuple[Committed, bool]:
        """The first answer, and whether copies may be under way for which there was none."""
        while True:
            try:
                return self._client.transact(transaction), outstanding
            except EtcdUnreachable as error:
                outstanding = outstanding or error.landed
                if outstanding and note.revision == 0:
                    self._kept.add(note.key)
                if self._clock.now() >= deadline():
                    raise EtcdUnreachable(str(error), outstanding) from error
                self.pause(_PAUSE)

    def _fenced_off(self, note: Note, deadline: Deadline) -> Committed | None:
        """Change the note, so that no copy of the write can be carried out from now on. What came of the write if one
        was faster; else None."""
        fence = Transaction((note.unchanged(),), (self._mark(note, _FENCED),), (Get(note.key),))
        done, _ = self._answered(note, fence, deadline, outstanding=True)
        if done.succeeded:
            note.revision = done.revision
            return None
        return _landed(note, done.ranges[0].first)

    def _mark(self, note: Note, value: bytes) -> Put:
        return Put(note.key, value, self._lease)


def _landed(note: Note, found: KeyValue | None) -> Committed | None:
    """What came of a write whose note reads `found`: None if it was not carried out. Brings the note up to date."""
    revision = found.mod_revision if found else 0
    if revision == note.revision:
        return None
    note.revision = revision
    return Committed(True, revision) if found and found.value == _WRITTEN else None

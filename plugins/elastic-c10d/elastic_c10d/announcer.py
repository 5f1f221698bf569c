"""One node's own announcements: how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_c10d.keys import create
from elastic_c10d.log_record import SUPERSEDED, VOID, LogRecord

if TYPE_CHECKING:
    from elastic_c10d.keys import Keys
    from elastic_c10d.torch_store import Store


@dataclass
class _Own:
    """Where a key of ours stands: its first slot, and the slot of what it announced last (None: not known to be
    written)."""

    first: int
    latest: int | None = None
    entry: bytes | None = None


class Announcer:
    """Writes announcements in one life of the store. Used from one thread at a time.

    Args:
        keys: of the job.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._own: dict[str, _Own] = {}

    def announce(self, store: Store, key: str, entry: bytes) -> int:
        """Append an announcement. Returns the slot of the first one of this key."""
        own = self._own.get(key)
        if own is None:
            own = self._own[key] = _Own(store.add(self._keys.slots, 1))
            slot: int | None = own.first
        else:
            slot = None
        own.entry = entry
        if own.latest is None:  # the counter is there before the entry is: who sees an entry reads its beats unasked
            store.add(self._keys.beats(own.first), 1)
        self._append(store, own, LogRecord(key, own.first, entry), slot)
        return own.first

    def move_to(self, other: Announcer, store: Store) -> None:
        """Announce what stands here with `other`, in the life of the store that is its."""
        for key, own in self._own.items():
            if own.entry is not None:
                other.announce(store, key, own.entry)

    def withdraw(self, store: Store, key: str, first: int | None) -> None:
        """Append a withdrawal of a key of ours that may have been announced; or of another's, whose first slot is
        `first` (None: it has no entry). That one, if it lives after all, announces itself again and keeps its place."""
        own = self._own.pop(key, None) or (_Own(first) if first is not None else None)
        if own is not None:
            self._append(store, own, LogRecord(key, own.first, None), None)

    def beat(self, store: Store, key: str) -> None:
        """Count one beat of an announced key."""
        own = self._own.get(key)
        if own is not None:
            store.add(self._keys.beats(own.first), 1)

    def _append(self, store: Store, own: _Own, record: LogRecord, slot: int | None) -> None:
        """Write the record into `slot`, or into a new one where a reader lost patience with us and voided it. Only then
        is what it replaces marked, so that at every moment somebody who reads the log finds the node in it."""
        value = record.encode()
        before = own.latest
        own.latest = None
        slot = store.add(self._keys.slots, 1) if slot is None else slot
        while create(store, self._keys.slot(slot), value) == VOID:
            slot = store.add(self._keys.slots, 1)
        own.latest = slot
        if before is not None:
            store.set(self._keys.slot(before), SUPERSEDED.decode())

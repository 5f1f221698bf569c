"""The log of announcements as a reader sees it. Every announcement of every node has a slot of its own in it.

A writer takes a slot by counting up `slots`, then fills it. A reader folds filled slots in their order, from where it
stopped the last time, so that joining costs a node a handful of operations and costs a reader one more entry.

- A writer that dies between the two leaves a hole. A reader that has known of a slot for 2 s and finds it unfilled
  voids it, by the same compare_set that fills it, so that only one of the two can happen; a writer that was merely
  slow sees it and takes another slot. A void slot is never deleted, or the slow writer could still fill it, behind
  the cursor of every reader.
- `base` tells newcomers where live slots begin. Whoever reads moves it on when what lies before is dead, and deletes
  slots there whose writer is done with them. A reader that finds its next slot empty and `base` beyond it was left
  behind, and folds the log anew from there: everything alive is at or after `base`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_c10d.keys import compare_set, create
from elastic_c10d.log_record import VOID, decode_record
from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import Announced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_c10d.keys import Keys
    from elastic_c10d.torch_store import Store
    from elastic_core.clock import Clock, Duration, Instant

CHUNK = 512
_TIDIED_AT_ONCE = 64


@dataclass(frozen=True)
class _Live:
    first: int
    slot: int
    entry: bytes


class RosterLog:
    """Reads the log in one life of the store. Used from one thread at a time.

    Args:
        keys: of the job.
        clock: times holes.
        patience: seconds after which a hole is voided.
    """

    def __init__(self, keys: Keys, clock: Clock, patience: Duration) -> None:
        self._keys = keys
        self._clock = clock
        self._patience = patience
        self._base = 0
        self._live: dict[str, _Live] = {}
        self._void: set[int] = set()
        self._sighted: list[tuple[int, Instant]] = []
        self.cursor = 0
        self.behind = False

    def read(self, store: Store) -> tuple[Announced, ...]:
        """All entries, the oldest first, their beats fresh. `cursor` is the last slot read afterwards; `behind` says
        whether slots beyond it were taken but not filled yet."""
        if self._base == 0:
            self._start(store)
        self._fold(store, self._taken(store))
        self._tidy(store)
        return self._with_beats(store)

    def first_slot(self, key: str) -> int | None:
        """The first slot of a key that was live at the last reading."""
        live = self._live.get(key)
        return None if live is None else live.first

    def base(self, store: Store) -> int:
        """Where live slots begin, or began a short while ago."""
        found = create(store, self._keys.base, b"1")
        if not found.isdigit():
            raise RendezvousStateError(f"expected a number under the key {self._keys.base!r}, found {found[:60]!r}")
        return int(found)

    def _start(self, store: Store) -> None:
        self._base = self.base(store)
        self._live, self._void = {}, set()
        self.cursor = self._base - 1

    def _taken(self, store: Store) -> int:
        taken = store.add(self._keys.slots, 0)
        if taken > (self._sighted[-1][0] if self._sighted else self.cursor):
            self._sighted.append((taken, self._clock.now()))
        return taken

    def _fold(self, store: Store, taken: int) -> None:
        while self.cursor < taken:
            found = self._filled(store, self.cursor + 1, min(taken, self.cursor + CHUNK))
            for value in found:
                self.cursor += 1
                self._fold_one(self.cursor, value)
            if not found and not self._pass_hole(store):
                break
        self.behind = self.cursor < taken
        self._sighted = [sighting for sighting in self._sighted if sighting[0] > self.cursor]

    def _filled(self, store: Store, first: int, last: int) -> list[bytes]:
        """The values of the filled slots from `first` on, up to the next hole; `multi_get` would wait for that. If it
        ever waits for a slot that was deleted in between, since we were left behind just then, it breaks off at the
        read timeout, and the next reading finds `base` further on."""
        names = [self._keys.slot(number) for number in range(first, last + 1)]
        while names and not store.check(names):
            names = names[: len(names) // 2]
        return [bytes(value) for value in store.multi_get(names)] if names else []

    def _pass_hole(self, store: Store) -> bool:
        """Whether the log can be read on from the cursor, where there is a hole."""
        if self.base(store) > self.cursor + 1:
            self._start(store)
            return True
        hole = self.cursor + 1
        since = next(instant for taken, instant in self._sighted if taken >= hole)
        if self._clock.now() - since < self._patience:
            return False
        create(store, self._keys.slot(hole), VOID)
        return True

    def _fold_one(self, slot: int, value: bytes) -> None:
        if value == VOID:
            self._void.add(slot)
        record = decode_record(value, self._keys.slot(slot))
        if record is None:
            return
        if record.entry is None:
            self._live.pop(record.key, None)
        else:
            self._live[record.key] = _Live(record.first, slot, record.entry)

    def _tidy(self, store: Store) -> None:
        """Move `base` past dead slots. Only who moved it deletes them, so nobody deletes behind another's reading."""
        begin = min((live.slot for live in self._live.values()), default=self.cursor + 1)
        begin = min(begin, self._base + _TIDIED_AT_ONCE)
        if begin <= self._base:
            return
        moved = compare_set(store, self._keys.base, str(self._base).encode(), str(begin).encode())
        if moved == str(begin).encode():
            self._delete(store, self._base, begin)
        self._base = int(moved)
        self._void = {slot for slot in self._void if slot >= begin}

    def _delete(self, store: Store, first: int, beyond: int) -> None:
        try:
            for slot in range(first, beyond):
                if slot not in self._void:
                    store.delete_key(self._keys.slot(slot))
        except NotImplementedError:
            pass  # the store keeps them, which costs memory only

    def _with_beats(self, store: Store) -> tuple[Announced, ...]:
        live = sorted(self._live.items(), key=lambda item: item[1].first)
        beats = self._beats(store, [entry.first for _, entry in live])
        return tuple(Announced(key, entry.entry, count) for (key, entry), count in zip(live, beats, strict=True))

    def _beats(self, store: Store, firsts: list[int]) -> Iterator[int]:
        for start in range(0, len(firsts), CHUNK):
            names = [self._keys.beats(first) for first in firsts[start : start + CHUNK]]
            yield from (int(value) for value in store.multi_get(names))

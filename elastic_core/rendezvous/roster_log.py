"""Keeps the roster in a key-value store, as a log in which every announcement has its own slot.

To announce itself, a node takes a slot by incrementing `slots`, and then fills that slot. A reader processes filled
slots in order, from where it last stopped. Joining therefore costs only a few operations, and each reader has to read
only one more entry.

- A node that dies between these two steps leaves a hole. A reader that has seen a hole for 2 s voids the slot. Voiding
  and filling use the same compare_set, so only one of them succeeds. A node that was merely slow notices that its slot
  is void, and takes another one. If the node was so slow that the void slot has been deleted, it can still fill that
  slot, but no reader reads the slot any more. The node detects this case because `base` is beyond the slot.
- `base` is where live slots begin. A reader moves `base` past dead slots, and deletes these slots in ascending order.
  If the reader dies before it has deleted all of them, the next reader deletes the remaining slots. If a reader's next
  slot is empty and before `base`, the reader rereads the log from `base`. If a node's entry is far behind the end of
  the log, the node announces the entry again, so that `base` can grow.
- If the job has a secret, each record is signed for its slot. Readers skip unsigned records.
- A node that withdraws another node's entry also resets the entry's heartbeat counter, so that the other node, if it is
  alive, notices the withdrawal. Each node also checks periodically that its record still exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import Announced, EntryDroppedError
from elastic_core.log import get_logger
from elastic_core.rendezvous.versions import (
    EpochEnded,
    add,
    as_number,
    compare_set,
    create,
    delete,
    epoch_named,
    foreign,
    is_wait_timeout,
    peek,
    standing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import Seal, Store
    from elastic_core.rendezvous.versions import Keys

VOID = b"-"  # a reader has voided the slot
CHUNK = 512
_MOST_AT_ONCE = 4096  # small values in one operation
_TIDIED_AT_ONCE = 64
_MOST_TRIES = 256  # slots to try, because some may be void or filled by something else
_FAR_BEHIND = 256  # slots; if more follow an entry, its node announces it again
_OTHERS_KEPT = 4096  # slots to keep for nodes with another secret; live nodes announce themselves again sooner
_BEATS_PER_LOOK = 64
_MOST_DIGITS = 18
_LONGEST_KEY = 4096
_MOST_UNREAD = 131_072  # slots; no more can have been taken since the last read, whatever the counter shows


@dataclass(frozen=True)
class LogRecord:
    """An announcement of `key` or, if `entry` is None, its withdrawal. `first` is the key's first slot."""

    key: str
    first: int
    entry: bytes | None

    def encode(self) -> bytes:
        head = f"{self.first} {quote(self.key, safe='/:')}".encode()
        return head if self.entry is None else head + b" " + self.entry


def decoded_record(value: bytes) -> LogRecord:
    """Decode a record. Raises ValueError if the value is not one."""
    first, _, rest = value.partition(b" ")
    key, payload, entry = rest.partition(b" ")
    if not first.isdigit() or len(first) > _MOST_DIGITS or not 0 < len(key) <= _LONGEST_KEY or not key.isascii():
        raise ValueError(f"expected an announcement, found {value[:60]!r}")
    return LogRecord(unquote(key.decode()), int(first), entry if payload else None)


@dataclass
class _Own:
    """An entry that this node announces.

    Args:
        first, latest: the entry's first and newest slots; `latest` is None if that slot may not have been written.
        written: the content of the newest slot.
        entry: the encoded entry; None if this node is about to withdraw it.
        beats: the entry's heartbeat counter.
    """

    first: int
    latest: int | None = None
    written: bytes = b""
    entry: bytes | None = None
    beats: int = 0


@dataclass(frozen=True)
class _Live:
    first: int
    slot: int
    counter: str
    entry: bytes


class RosterLog:
    """Reads and writes the log for one node, in one epoch of the store. Only one thread at a time may use an instance.

    Every method raises ForeignWrite if the keys contradict each other, and EpochEnded if the nodes have left the epoch.

    Args:
        patience: seconds after which a hole is voided, measured with `clock`.
        observes: see `StoreBackend`.

    Attributes:
        cursor: the last slot read.
        behind: whether later slots have been taken but not yet filled.
    """

    def __init__(self, keys: Keys, seal: Seal, clock: Clock, patience: Duration, observes: bool = False) -> None:
        self._keys = keys
        self._seal = seal
        self._clock = clock
        self._patience = patience
        self._observes = observes
        self._own: dict[str, _Own] = {}
        self._base = 0
        self._live: dict[str, _Live] = {}
        self._withdrawn: dict[int, str] = {}  # the slots of withdrawals, with the key's counter
        self._others: int | None = None  # the first slot that nodes with another secret may have filled
        self._sighted: list[tuple[int, Instant]] = []
        self.cursor = 0
        self.behind = False

    # -- writing

    @property
    def own_keys(self) -> list[str]:
        """The keys that this node has announced and not withdrawn."""
        return [key for key, own in self._own.items() if own.entry is not None]

    def announce(self, store: Store, key: str, entry: bytes) -> int:
        """Append an announcement. Returns the approximate number of older live entries."""
        own = self._own.get(key)
        if own is None or own.entry is None:  # a withdrawal that failed may be stored, and its counter deleted
            own = _Own(first=0)
        elif own.latest is None:
            own.beats = add(store, self._keys.beats(own.first, key), 1)
        own.entry = entry
        base = self._append(store, key, own)
        return max(0, own.first - base)

    def move_to(self, other: RosterLog, store: Store) -> None:
        """Announce this node's entries in another epoch's log."""
        for key, own in self._own.items():
            if own.entry is not None:
                other.announce(store, key, own.entry)

    def withdraw(self, store: Store, key: str) -> None:
        """Append a withdrawal of one of this node's keys, or of another node's key that was live at the last read."""
        own, live = self._own.get(key), self._live.get(key)
        if own is None and live is not None:
            store.set(live.counter, b"0")
            own = _Own(live.first)
        if own is not None:
            own.entry = None
            self._append(store, key, own)
            self._own.pop(key, None)  # not earlier, so that a failed withdrawal is repeated

    def beat(self, store: Store, key: str) -> None:
        """Send one heartbeat. Raises EntryDroppedError if the key was not announced in this epoch or another node has
        withdrawn it."""
        own = self._own.get(key)
        if own is None:
            raise EntryDroppedError(
                "the store has lost its data, including this node's entry; the node will announce itself again"
            )
        before, own.beats = own.beats, self._incremented(store, self._keys.beats(own.first, key))
        if own.beats <= before:
            del self._own[key]
            if own.beats == 1:  # the counter had been deleted, and the heartbeat has recreated it
                delete(store, self._keys.beats(own.first, key))
            raise EntryDroppedError(
                "another node has withdrawn this node's entry because its heartbeats had stopped; the node will "
                "announce itself again"
            )
        if own.latest is not None and own.entry is not None and not self._is_in_place(store, own, own.latest):
            self.announce(store, key, own.entry)

    def _is_in_place(self, store: Store, own: _Own, slot: int) -> bool:
        """Return whether the record in this slot still exists and is not far behind the end of the log. To save
        operations, most calls return True without checking."""
        if own.beats % _BEATS_PER_LOOK == 0:
            return 0 <= add(store, self._keys.slots, 0) - slot <= _FAR_BEHIND
        due = own.beats % _BEATS_PER_LOOK == _BEATS_PER_LOOK // 2
        return not due or standing(store, self._keys.slot(slot)) == own.written

    def _incremented(self, store: Store, counter: str) -> int:
        """Increment the counter and return its new value. Returns 0 if something else has written to the counter."""
        try:
            return add(store, counter, 1)
        except RendezvousStateError:
            return 0

    def _append(self, store: Store, key: str, own: _Own) -> int:
        """Write the record into a new slot, and return `base`. If a reader has voided the slot, or something else has
        written to it, try the next slot. Also try the next slot if this one precedes `base`, because it was then voided
        and deleted. The entry's older record is kept for readers that have not read this far yet."""
        own.latest, begins = None, own.first == 0
        for _ in range(_MOST_TRIES):
            slot = add(store, self._keys.slots, 1)
            if begins:  # create the counter before the entry: a reader of the entry also reads the counter
                self._own[key], own.first = own, slot
                own.beats = add(store, self._keys.beats(slot, key), 1)
            value = self._seal.sealed(self._keys.slot(slot), LogRecord(key, own.first, own.entry).encode())
            if create(store, self._keys.slot(slot), value) == value:
                base = self._read_base(store)
                if base <= slot or not delete(store, self._keys.slot(slot)):
                    break
        else:
            tried = f"a free slot among the last {_MOST_TRIES} in {self._keys.slots!r}"
            raise foreign(tried, f"none up to slot {slot}")
        own.latest, own.written = slot, value
        return base

    # -- reading

    def read(self, store: Store) -> tuple[Announced, ...]:
        """Return all entries, oldest first, with current counters. Takes two operations if nothing has changed."""
        if self._base == 0:
            self._start(store)
        taken, beats = self._look(store)
        while not self._fold(store, taken):
            self._start(store)  # slots that have to be read may have been taken since the last read
            taken, beats = self._look(store)
        if not self._observes:
            self._tidy(store)
        live = sorted(self._live.items(), key=lambda item: item[1].first)
        new = [entry.counter for _, entry in live if entry.counter not in beats]
        beats |= self._counted(store, new, values_there(store, new))
        return tuple(Announced(key, entry.entry, beats[entry.counter]) for key, entry in live)

    def _read_base(self, store: Store) -> int:
        found = (peek(store, self._keys.base) or b"1") if self._observes else create(store, self._keys.base, b"1")
        return as_number(self._keys.base, found)

    def _start(self, store: Store) -> None:
        self._base = self._read_base(store)
        self._live, self._withdrawn, self._others = {}, {}, None
        self.cursor = self._base - 1

    def _look(self, store: Store) -> tuple[int, dict[str, int]]:
        """Read how many slots are taken, and the live entries' counters. Raises EpochEnded if the nodes have left the
        epoch."""
        counters = [live.counter for live in self._live.values()]
        values = values_there(store, [self._keys.id, self._keys.slots, *counters])
        if epoch_named(values.get(self._keys.id, b"")) != self._keys.epoch:
            raise EpochEnded
        taken = as_number(self._keys.slots, values.get(self._keys.slots) or b"0")
        return self._sighted_slots(store, taken), self._counted(store, counters, values)

    def _sighted_slots(self, store: Store, taken: int) -> int:
        """Record when this many slots were first seen. If the number contradicts earlier reads, reread the log from
        `base`. If the number also contradicts `base`, raise ForeignWrite, because something else has written one of the
        two."""
        if taken < self.cursor and self._live:
            raise foreign(
                f"a number that only grows under the key {self._keys.slots!r}", f"{taken} after {self.cursor}"
            )
        if not 0 <= taken - self.cursor <= _MOST_UNREAD:
            self._start(store)
            self._sighted = []
        if not 0 <= taken - self.cursor <= _MOST_UNREAD:
            both = f"{self._keys.base!r} and {self._keys.slots!r}"
            raise foreign(f"consistent numbers under the keys {both}", f"{self._base} and {taken}")
        if taken > (self._sighted[-1][0] if self._sighted else self.cursor):
            self._sighted.append((taken, self._clock.now()))
        return taken

    def _fold(self, store: Store, taken: int) -> bool:
        """Process the slots that have been taken. Returns False if the log has to be reread from `base`."""
        holes, ahead = 0, CHUNK
        while self.cursor < taken and holes < CHUNK:  # each hole takes time, so leave some holes for the next read
            found = self._filled(store, self.cursor + 1, min(taken, self.cursor + ahead))
            ahead = min(CHUNK, 2 * ahead) if found else 1  # there may be more holes
            for value in found:
                self.cursor += 1
                self._fold_one(self.cursor, value)
            if not found:
                holes += 1
                if self._read_base(store) > self.cursor + 1:
                    return False
                if not self._pass_hole(store):
                    break
        self.behind = self.cursor < taken
        self._sighted = [sighting for sighting in self._sighted if sighting[0] > self.cursor]
        return True

    def _filled(self, store: Store, first: int, last: int) -> list[bytes]:
        """Return the values from `first` up to, but not including, the next hole, because `multi_get` would wait until
        the hole is filled. Return an empty list if another reader has just deleted one of these slots. In that case,
        `base` has moved past the slot."""
        names = [self._keys.slot(number) for number in range(first, last + 1)]
        while names and not store.check(names):
            names = names[: len(names) // 2]
        return values_of(store, names) or []

    def _pass_hole(self, store: Store) -> bool:
        """Void the hole after the cursor if the hole is old enough. Returns whether it was voided."""
        hole, now = self.cursor + 1, self._clock.now()
        late = [taken for taken, since in self._sighted if taken >= hole and now - since >= self._patience]
        if self._observes or not late:
            return False
        some = (hole, (hole + late[-1]) // 2, late[-1])
        if late[-1] - hole > CHUNK and not any(store.check([self._keys.slot(slot)]) for slot in some):
            raise foreign(f"the slots before {late[-1]} to be filled", f"no filled slot after {hole - 1}")
        create(store, self._keys.slot(hole), VOID)
        return True

    def _fold_one(self, slot: int, value: bytes) -> None:
        if self._others is None and self._seal.is_others(value):
            self._others = slot
        try:
            record = self._record(slot, value)
        except ValueError as error:
            get_logger().warning("entry unreadable", node=self._keys.slot(slot), reason=str(error))
            return
        if record is None:
            return
        counter = self._keys.beats(record.first, record.key)
        if record.entry is None:
            if (live := self._live.get(record.key)) and live.first == record.first:  # otherwise announced again
                del self._live[record.key]
            self._withdrawn[slot] = counter
        else:
            self._live[record.key] = _Live(record.first, slot, counter, record.entry)

    def _record(self, slot: int, value: bytes) -> LogRecord | None:
        """Return the slot's record, or None for a void slot or an unsigned record. Raises ValueError if the value is
        not a record."""
        opened = None if value == VOID else self._seal.opened(self._keys.slot(slot), value)
        return None if opened is None else decoded_record(opened)

    def _tidy(self, store: Store) -> None:
        """Move `base` past dead slots. Only the reader that has moved `base` deletes these slots."""
        begin = min((live.slot for live in self._live.values()), default=self.cursor + 1)
        begin = min(begin, self._base + _TIDIED_AT_ONCE)
        if self._others is not None:
            begin = min(begin, max(self._others, self.cursor - _OTHERS_KEPT))
        if begin <= self._base:
            return
        moved = compare_set(store, self._keys.base, b"%d" % self._base, b"%d" % begin)
        if moved == b"%d" % begin:
            counted = {live.counter for live in self._live.values()}
            self._delete_left(store, self._base - 1, counted)
            for slot in range(self._base, begin):
                self._delete(store, slot, self._withdrawn.get(slot), counted)
        self._base = as_number(self._keys.base, moved) if moved else self._read_base(store)
        self._withdrawn = {slot: counter for slot, counter in self._withdrawn.items() if slot >= begin}

    def _delete_left(self, store: Store, slot: int, counted: set[str]) -> None:
        """Delete this slot and the slots before it, down to the first gap. Such slots remain if a reader has died after
        moving `base`."""
        while slot > 0 and (value := peek(store, self._keys.slot(slot))) is not None:
            if not self._delete(store, slot, self._withdrawn_in(slot, value), counted):
                return  # the store cannot delete keys
            slot -= 1

    def _delete(self, store: Store, slot: int, withdrawn: str | None, counted: set[str]) -> bool:
        """Delete the slot. If a key was withdrawn there, delete its counter first, because no other record names that
        counter."""
        if withdrawn is not None and withdrawn not in counted:
            delete(store, withdrawn)
        return delete(store, self._keys.slot(slot))

    def _withdrawn_in(self, slot: int, value: bytes) -> str | None:
        """Return the counter of the key that this record withdraws, or None for any other record."""
        try:
            record = self._record(slot, value)
        except ValueError:
            return None
        if record is None or record.entry is not None:
            return None
        return self._keys.beats(record.first, record.key)

    def _counted(self, store: Store, counters: list[str], values: Mapping[str, bytes]) -> dict[str, int]:
        """Return the number of heartbeats for each counter. The number is 0 if something else has overwritten or
        deleted the counter. The node that owns the counter notices the change, and switches to another counter."""
        beats = {}
        for counter in counters:
            value = values.get(counter, b"")
            beats[counter] = int(value) if value.isdigit() and len(value) <= _MOST_DIGITS else 0
            if value and not beats[counter] and value != b"0" and not self._observes:
                store.set(counter, b"0")
        return beats


def values_there(store: Store, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the values of the keys that exist. Takes two operations if all exist and the store has `multi_get`."""
    there = _there(store, list(keys))
    found: dict[str, bytes] = {}
    for start in range(0, len(there), _MOST_AT_ONCE):
        some = there[start : start + _MOST_AT_ONCE]
        values = values_of(store, some)
        if values is None:
            found |= {key: value for key in some if (value := peek(store, key)) is not None}
        else:
            found.update(zip(some, values, strict=True))
    return found


def _there(store: Store, keys: list[str]) -> list[str]:
    """Return the keys that exist. A store only reports whether all given keys exist, so this function bisects the
    list."""
    if not keys or store.check(keys):
        return keys
    half = len(keys) // 2
    return _there(store, keys[:half]) + _there(store, keys[half:]) if half else []


def values_of(store: Store, keys: Sequence[str]) -> list[bytes] | None:
    """Return the values of existing keys, in one operation if the store has `multi_get`. If a key has just been
    deleted, `multi_get` waits for as long as `StoreConnection.shorten_timeout` allows, and this function then returns
    None. `get` is not used, because it would wait for the store's own timeout. In those minutes, this node would send
    no heartbeats."""
    several = getattr(store, "multi_get", None)
    if several is None or not keys:
        values = [value for key in keys if (value := standing(store, key)) is not None]
        return values if len(values) == len(keys) else None
    try:
        return [bytes(value) for value in several(list(keys))]
    except Exception as error:
        if is_wait_timeout(error):
            return None
        raise

"""The roster in a key-value store: a log of announcements. Every announcement of every node has a slot of its own.

A writer takes a slot by counting up `slots`, then fills it. A reader folds filled slots in their order, from where it
stopped the last time, so that joining costs a node a handful of operations and costs a reader one more entry.

- A writer that dies between the two leaves a hole. A reader that has known of a slot for 2 s and finds it unfilled
  voids it, by the same compare_set that fills it, so that only one of the two can happen; a writer that was merely
  slow sees it and takes another slot. So does one that was so slow that the void slot was deleted, and it could fill
  it behind the cursor of every reader: it finds `base` beyond it.
- `base` tells newcomers where live slots begin. A reader moves it on when the slots before it are dead, and deletes
  them, the first one first: a reader that dies meanwhile leaves some right before `base`, which the next reader
  deletes. A reader that finds its next slot empty and `base` beyond it was left behind, and folds the log anew from
  there: everything alive is at or after `base`. A node whose entry is far behind the others announces it once more, so
  that it does not hold up `base`.
- Every record is signed for its slot, where the job has a secret; what is not is passed over as a void slot is.
- An entry may be withdrawn by another node. Its counter then begins anew, which tells the entry's node, if it lives.
  Now and then the node looks by itself whether its record still stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import Announced, EntryDroppedError
from elastic_core.log import get_logger
from elastic_core.rendezvous.versions import (
    EpochLeft,
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
    from elastic_core.interfaces.backend import Seal
    from elastic_core.interfaces.store import Store
    from elastic_core.rendezvous.versions import Keys

VOID = b"-"  # the slot was not filled in time
CHUNK = 512
_MOST_AT_ONCE = 4096  # small values in one operation
_TIDIED_AT_ONCE = 64
_MOST_TRIES = 256  # slots that somebody else may have filled, or passed over, before one is ours
_FAR_BEHIND = 256  # slots after an entry, from which on it is announced once more
_OTHERS_KEPT = 4096  # slots, of nodes with another secret: those that live announce their entries once more before
_BEATS_PER_LOOK = 64
_MOST_DIGITS = 18
_LONGEST_KEY = 4096
_MOST_UNREAD = 131_072  # slots; more cannot have been taken since the last look, even if the counter says so


@dataclass(frozen=True)
class LogRecord:
    """An announcement of `key`, or (`entry` None) its withdrawal. `first` is the slot of the key's first one."""

    key: str
    first: int
    entry: bytes | None

    def encode(self) -> bytes:
        head = f"{self.first} {quote(self.key, safe='/:')}".encode()
        return head if self.entry is None else head + b" " + self.entry


def decoded_record(value: bytes) -> LogRecord:
    """The record. Raises ValueError: it is nothing that we write."""
    first, _, rest = value.partition(b" ")
    key, payload, entry = rest.partition(b" ")
    if not first.isdigit() or len(first) > _MOST_DIGITS or not 0 < len(key) <= _LONGEST_KEY or not key.isascii():
        raise ValueError(f"expected an announcement, found {value[:60]!r}")
    return LogRecord(unquote(key.decode()), int(first), entry if payload else None)


@dataclass
class _Own:
    """Where a key of ours stands: its first slot, the slot of what it announced last (None: not known to be written),
    what stands there, its entry (None: it is about to be withdrawn), and its beats."""

    first: int
    latest: int | None = None
    written: bytes = b""
    entry: bytes | None = None
    beats: int = 0


class Announcer:
    """Writes the announcements of one node in one epoch of the store. Used from one thread at a time.

    Args:
        keys: of the job, in this epoch.
        seal: signs the records.
    """

    def __init__(self, keys: Keys, seal: Seal) -> None:
        self._keys = keys
        self._seal = seal
        self._own: dict[str, _Own] = {}

    @property
    def keys(self) -> list[str]:
        """Of what it has announced, and not withdrawn."""
        return [key for key, own in self._own.items() if own.entry is not None]

    def announce(self, store: Store, key: str, entry: bytes) -> int:
        """Append an announcement. Returns how many live ones are older than the first of this key, about."""
        own = self._own.get(key)
        if own is None or own.entry is None:  # a withdrawal that broke off may have landed, and its counter be deleted
            own = _Own(first=0)
        elif own.latest is None:
            own.beats = add(store, self._keys.beats(own.first, key), 1)
        own.entry = entry
        base = self._append(store, key, own)
        return max(0, own.first - base)

    def move_to(self, other: Announcer, store: Store) -> None:
        """Announce what stands here with `other`, in the epoch of the store that is its."""
        for key, own in self._own.items():
            if own.entry is not None:
                other.announce(store, key, own.entry)

    def withdraw(self, store: Store, key: str, first: int | None) -> None:
        """Append a withdrawal of a key of ours that may have been announced; or of another's, whose first slot is
        `first` (None: it has no entry)."""
        own = self._own.get(key)
        if own is None and first is not None:
            store.set(self._keys.beats(first, key), b"0")
        if own is not None or first is not None:
            own = own or _Own(first or 0)
            own.entry = None
            self._append(store, key, own)
            self._own.pop(key, None)  # only now: one that breaks off is made again

    def beat(self, store: Store, key: str) -> None:
        """Count one beat of an announced key. Raises EntryDroppedError: it was not announced in this epoch, or another
        node has withdrawn it."""
        own = self._own.get(key)
        if own is None:
            raise EntryDroppedError(
                "expected the entry of this node in the store, found that the store has lost its data; the node "
                "announces itself again"
            )
        before, own.beats = own.beats, self._counted(store, self._keys.beats(own.first, key))
        if own.beats <= before:
            del self._own[key]
            if own.beats == 1:  # it was deleted, too, and is of no use to anybody
                delete(store, self._keys.beats(own.first, key))
            raise EntryDroppedError(
                "expected the entry of this node to stand, found that another node has withdrawn it because it gave no "
                "beat for long; the node announces itself again"
            )
        if own.latest is not None and own.entry is not None and not self._is_in_place(store, own, own.latest):
            self.announce(store, key, own.entry)

    def _is_in_place(self, store: Store, own: _Own, slot: int) -> bool:
        """Asked in turn, now and then: whether the record in this slot is not far behind, and whether it stands."""
        if own.beats % _BEATS_PER_LOOK == 0:
            return 0 <= add(store, self._keys.slots, 0) - slot <= _FAR_BEHIND
        due = own.beats % _BEATS_PER_LOOK == _BEATS_PER_LOOK // 2
        return not due or standing(store, self._keys.slot(slot)) == own.written

    def _counted(self, store: Store, counter: str) -> int:
        """One more beat. 0 where something else has written to the counter: the node gets another one then."""
        try:
            return add(store, counter, 1)
        except RendezvousStateError:
            return 0

    def _append(self, store: Store, key: str, own: _Own) -> int:
        """Write the record into a new slot; into the next one where a reader lost patience with us and voided it, or
        something else has written. What it replaces stays for readers that do not come to this slot yet. A slot before
        `base` was void and deleted before it was filled: what is written there goes as well. Returns `base`."""
        own.latest, begins = None, own.first == 0
        for _ in range(_MOST_TRIES):
            slot = add(store, self._keys.slots, 1)
            if begins:  # the counter is there before the entry: a reader that sees an entry reads its beats too
                self._own[key], own.first = own, slot
                own.beats = add(store, self._keys.beats(slot, key), 1)
            value = self._seal.sealed(self._keys.slot(slot), LogRecord(key, own.first, own.entry).encode())
            if create(store, self._keys.slot(slot), value) == value:
                base = as_number(self._keys.base, create(store, self._keys.base, b"1"))
                if base <= slot or not delete(store, self._keys.slot(slot)):
                    break
        else:
            raise foreign(f"a slot at {self._keys.slots!r} that is free, and after {self._keys.base!r}", f"{slot}")
        own.latest, own.written = slot, value
        return base


@dataclass(frozen=True)
class _Live:
    first: int
    slot: int
    counter: str
    entry: bytes


class RosterLog:
    """Reads the log in one epoch of the store. Used from one thread at a time.

    Every method raises Foreign where the keys contradict each other, and EpochLeft where the nodes have left the epoch.

    Args:
        keys: of the job, in this epoch.
        seal: knows which records are signed.
        clock: times holes.
        patience: seconds after which a hole is voided.
        observes: it changes nothing.

    Attributes:
        cursor: the last slot read.
        behind: whether slots beyond it were taken but not filled yet.
    """

    def __init__(self, keys: Keys, seal: Seal, clock: Clock, patience: Duration, observes: bool = False) -> None:
        self._keys = keys
        self._seal = seal
        self._clock = clock
        self._patience = patience
        self._observes = observes
        self._base = 0
        self._live: dict[str, _Live] = {}
        self._withdrawn: dict[int, str] = {}  # the slots of withdrawals, with the counter of the key
        self._others: int | None = None  # the first slot that nodes with another secret may have filled
        self._sighted: list[tuple[int, Instant]] = []
        self.cursor = 0
        self.behind = False

    def read(self, store: Store) -> tuple[Announced, ...]:
        """All entries, the oldest first, their beats fresh. Two store operations when nothing has changed."""
        if self._base == 0:
            self._start(store)
        taken, beats = self._look(store)
        while not self._fold(store, taken):
            self._start(store)  # it was left behind; and what it then needs may be in slots taken since
            taken, beats = self._look(store)
        if not self._observes:
            self._tidy(store)
        live = sorted(self._live.items(), key=lambda item: item[1].first)
        new = [entry.counter for _, entry in live if entry.counter not in beats]
        beats |= self._counted(store, new, values_there(store, new))
        return tuple(Announced(key, entry.entry, beats[entry.counter]) for key, entry in live)

    def first_slot(self, key: str) -> int | None:
        """The first slot of a key that was live at the last reading."""
        live = self._live.get(key)
        return None if live is None else live.first

    def base(self, store: Store) -> int:
        """Where live slots begin, or began a short while ago."""
        found = (peek(store, self._keys.base) or b"1") if self._observes else create(store, self._keys.base, b"1")
        return as_number(self._keys.base, found)

    def _start(self, store: Store) -> None:
        self._base = self.base(store)
        self._live, self._withdrawn, self._others = {}, {}, None
        self.cursor = self._base - 1

    def _look(self, store: Store) -> tuple[int, dict[str, int]]:
        """Read in one operation how many slots were taken, the beats of live entries by counter, and whether this is
        still the epoch of the nodes."""
        counters = [live.counter for live in self._live.values()]
        values = values_there(store, [self._keys.id, self._keys.slots, *counters])
        if epoch_named(values.get(self._keys.id, b"")) != self._keys.epoch:
            raise EpochLeft
        taken = as_number(self._keys.slots, values.get(self._keys.slots) or b"0")
        return self._sighted_slots(store, taken), self._counted(store, counters, values)

    def _sighted_slots(self, store: Store, taken: int) -> int:
        """So many slots are known to be taken from now on. Where that does not go with what was read, the log is read
        anew from `base`; and where it does not go with that, something else has written one of the two."""
        if taken < self.cursor and self._live:
            raise foreign(
                f"a number under the key {self._keys.slots!r} that only grows", f"{taken} after {self.cursor}"
            )
        if not 0 <= taken - self.cursor <= _MOST_UNREAD:
            self._start(store)
            self._sighted = []
        if not 0 <= taken - self.cursor <= _MOST_UNREAD:
            both = f"{self._keys.base!r} and {self._keys.slots!r}"
            raise foreign(f"numbers under the keys {both} that belong together", f"{self._base} and {taken}")
        if taken > (self._sighted[-1][0] if self._sighted else self.cursor):
            self._sighted.append((taken, self._clock.now()))
        return taken

    def _fold(self, store: Store, taken: int) -> bool:
        """Read on, up to the slots taken. Returns false if the log has to be read anew from `base`."""
        holes, ahead = 0, CHUNK
        while self.cursor < taken and holes < CHUNK:  # the rest with the next reading: this one takes its time
            found = self._filled(store, self.cursor + 1, min(taken, self.cursor + ahead))
            ahead = min(CHUNK, 2 * ahead) if found else 1  # where there is a hole, there may be more
            for value in found:
                self.cursor += 1
                self._fold_one(self.cursor, value)
            if not found:
                holes += 1
                if self.base(store) > self.cursor + 1:
                    return False
                if not self._pass_hole(store):
                    break
        self.behind = self.cursor < taken
        self._sighted = [sighting for sighting in self._sighted if sighting[0] > self.cursor]
        return True

    def _filled(self, store: Store, first: int, last: int) -> list[bytes]:
        """The values of the filled slots from `first` on, up to the next hole; `multi_get` would wait for that. None
        of them if a slot was deleted meanwhile: we were left behind just then, and `base` is further on."""
        names = [self._keys.slot(number) for number in range(first, last + 1)]
        while names and not store.check(names):
            names = names[: len(names) // 2]
        return values_of(store, names) or []

    def _pass_hole(self, store: Store) -> bool:
        """Whether the log can be read on from the cursor, where there is a hole."""
        hole, now = self.cursor + 1, self._clock.now()
        late = [taken for taken, since in self._sighted if taken >= hole and now - since >= self._patience]
        if self._observes or not late:
            return False
        some = (hole, (hole + late[-1]) // 2, late[-1])
        if late[-1] - hole > CHUNK and not any(store.check([self._keys.slot(slot)]) for slot in some):
            raise foreign(f"the slots before {late[-1]} to be filled", f"that nobody has filled those after {hole - 1}")
        create(store, self._keys.slot(hole), VOID)
        return True

    def _fold_one(self, slot: int, value: bytes) -> None:
        if self._others is None and self._seal.is_others(value):
            self._others = slot
        try:
            record = self._record(slot, value)
        except ValueError as error:
            get_logger().warning("entry not readable", node=self._keys.slot(slot), reason=str(error))
            return
        if record is None:
            return
        counter = self._keys.beats(record.first, record.key)
        if record.entry is None:
            if (live := self._live.get(record.key)) and live.first == record.first:  # else it came back meanwhile
                del self._live[record.key]
            self._withdrawn[slot] = counter
        else:
            self._live[record.key] = _Live(record.first, slot, counter, record.entry)

    def _record(self, slot: int, value: bytes) -> LogRecord | None:
        """What is written there; None for a void slot, and for a record that is not signed. Raises ValueError."""
        opened = None if value == VOID else self._seal.opened(self._keys.slot(slot), value)
        return None if opened is None else decoded_record(opened)

    def _tidy(self, store: Store) -> None:
        """Move `base` past dead slots. Only the reader that moved it deletes them, so none deletes behind another's
        reading."""
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
        self._base = as_number(self._keys.base, moved) if moved else self.base(store)
        self._withdrawn = {slot: counter for slot, counter in self._withdrawn.items() if slot >= begin}

    def _delete_left(self, store: Store, slot: int, counted: set[str]) -> None:
        """This slot and those before it, as long as there is one: a reader that moved `base` and died has left them."""
        while slot > 0 and (value := peek(store, self._keys.slot(slot))) is not None:
            if not self._delete(store, slot, self._withdrawn_in(slot, value), counted):
                return  # the store cannot
            slot -= 1

    def _delete(self, store: Store, slot: int, withdrawn: str | None, counted: set[str]) -> bool:
        """The slot, and before it, since nothing else names it, the counter of a key that was withdrawn there."""
        if withdrawn is not None and withdrawn not in counted:
            delete(store, withdrawn)
        return delete(store, self._keys.slot(slot))

    def _withdrawn_in(self, slot: int, value: bytes) -> str | None:
        """The counter of the key that is withdrawn there, if one is."""
        try:
            record = self._record(slot, value)
        except ValueError:
            return None
        if record is None or record.entry is not None:
            return None
        return self._keys.beats(record.first, record.key)

    def _counted(self, store: Store, counters: list[str], values: Mapping[str, bytes]) -> dict[str, int]:
        """The beats by counter. A counter that was overwritten or deleted is 0; its node notices, and takes another
        one."""
        beats = {}
        for counter in counters:
            value = values.get(counter, b"")
            beats[counter] = int(value) if value.isdigit() and len(value) <= _MOST_DIGITS else 0
            if value and not beats[counter] and value != b"0" and not self._observes:
                store.set(counter, b"0")
        return beats


def values_there(store: Store, keys: Sequence[str]) -> dict[str, bytes]:
    """The values of those keys that exist; two operations where all do, and the store can."""
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
    """A store tells only whether all keys exist."""
    if not keys or store.check(keys):
        return keys
    half = len(keys) // 2
    return _there(store, keys[:half]) + _there(store, keys[half:]) if half else []


def values_of(store: Store, keys: Sequence[str]) -> list[bytes] | None:
    """The values of keys that exist; in one operation, where the store can. None if one has gone meanwhile. Such a
    store has waited for it, for no longer than `StoreConnection.hasten` has said; the others are not asked by `get`,
    which would wait for the store's own timeout: minutes, in which this node gives no beat."""
    several = getattr(store, "multi_get", None)
    if several is None or not keys:
        values = [standing(store, key) for key in keys]
        return None if None in values else [value for value in values if value is not None]
    try:
        return [bytes(value) for value in several(list(keys))]
    except Exception as error:
        if is_wait_timeout(error):
            return None
        raise

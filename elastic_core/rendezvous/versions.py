"""Keeps a job's state in a key-value store as numbered versions. Every fenced write of the state happens in this
module.

Each version v has its own key, created by `compare_set(key, "", value)`. This operation fences the write, because it
fails for all but the first writer. It also notifies the nodes, because nodes that have read v - 1 wait for that key.
`head` is the number of the newest version. It only grows, and may lag behind. Old versions are deleted. A node that was
suspended and tries to rewrite one of them finds the key absent, but learns from `head` that it is too late.

If these keys contradict each other because something else has written to them, all nodes begin another epoch, as after
a loss of data. A marker that is written in place of the next version wakes the nodes that are waiting for that version.
Another kind of marker ends the epoch because the store is moving (see `handover`). No version can be written after such
a marker.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote
from zlib import crc32

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import ForeignStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.interfaces.backend import Seal, Store

KEPT = 64  # versions; a writer that falls further behind is told that it has not written its version, even if it has
_WRITER = 8
_MOST_DIGITS = 18
_MOST_READ = 4 * KEPT  # versions per read; the head cannot lag behind by more than that
_NEVER = b"(nobody writes this)"
_LEFT = b"(left for another epoch)"
_MOVING = b"(moving)"
_MOST_HEIRS = 64
_LONGEST_KEY = 510
_EPOCH = re.compile(r"[0-9a-f]{16}")


class ForeignWrite(RendezvousStateError):
    """Something else has written to the job's keys."""


class EpochEnded(Exception):
    """The nodes have begun another epoch."""


class StoreMoving(Exception):
    """The store is moving to one of the nodes with these keys; if there are none, it has already moved."""

    def __init__(self, heirs: tuple[str, ...]) -> None:
        super().__init__(heirs)
        self.heirs = heirs


class Keys:
    """The keys of one job in a store. Each epoch has its own set of keys, except for `id`.

    id        the epoch; another one begins when the store has lost data, or something else has written to the keys
    s/<v>     version v of the state
    head      the number of the newest version; it may lag
    slots     how many slots of the announcement log have been taken
    e/<n>     slot n of that log
    b/<n>/<c> heartbeats of the node whose first slot was n and whose key has the checksum c (slot numbers may repeat if
              older data is restored; whole keys would be most of the traffic)
    base      no live announcement is in a slot before this one
    lead      the leader counter
    moved     the store's new address, or `STAYS` if no node has taken the store over
    pointed   how often the store's host has checked this key since the move, which shows that the host is alive
    """

    def __init__(self, run_id: str, epoch: str = "") -> None:
        job = f"elastic/{quote(run_id, safe='')}/"
        self.id = job + "id"
        self.epoch = epoch
        self._prefix = f"{job}{epoch}/"
        self.head = self._prefix + "head"
        self.slots = self._prefix + "slots"
        self.base = self._prefix + "base"
        self.lead = self._prefix + "lead"
        self.moved = self._prefix + "moved"
        self.pointed = self._prefix + "pointed"

    def state(self, version: int) -> str:
        return f"{self._prefix}s/{version}"

    def slot(self, number: int) -> str:
        return f"{self._prefix}e/{number}"

    def beats(self, first_slot: int, key: str) -> str:
        return f"{self._prefix}b/{first_slot}/{crc32(key.encode()) & 0xFFFF:x}"


def is_wait_timeout(error: BaseException) -> bool:
    """Return whether an operation timed out while it waited for a key. torch raises the same class for a timeout and
    for other errors, so the function has to read the message. A broken connection raises another class."""
    words = isinstance(error, RuntimeError) and type(error).__name__ != "DistNetworkError"
    return isinstance(error, TimeoutError) or (words and "timeout" in str(error).lower())


def peek(store: Store, key: str) -> bytes | None:
    """Return the value, or None if the key is absent. `get` is not used, because it would wait until the store's own
    timeout if the key were deleted after `check`. `standing` is not called for an absent key, because it would wake all
    clients that wait for the key."""
    return standing(store, key) if store.check([key]) else None


def standing(store: Store, key: str) -> bytes | None:
    """Return the value like `peek`, but with a single operation, a compare_set that changes nothing. Use this function
    only for a key that no client waits for."""
    found = compare_set(store, key, _NEVER, _NEVER)
    return None if found == _NEVER else found


def compare_set(store: Store, key: str, expected: bytes, desired: bytes) -> bytes:
    """Call the store's `compare_set`. Returns the resulting value, or `expected` if there is none."""
    return bytes(store.compare_set(key, expected, desired))


def create(store: Store, key: str, value: bytes) -> bytes:
    """Write the value if the key is absent. Returns the value that the key then has."""
    return compare_set(store, key, b"", value)


def as_number(key: str, found: bytes | int) -> int:
    """Return the number that is stored under the key. Raises ForeignWrite if elastic-core cannot have written it."""
    digits = found if isinstance(found, bytes) else b"%d" % found
    if not digits.isdigit() or len(digits) > _MOST_DIGITS or (digits[:1] == b"0" and digits != b"0"):
        raise foreign(f"a number under the key {key!r}", repr(digits[:60]))
    return int(digits)


def add(store: Store, key: str, amount: int) -> int:
    """Call the store's `add`. Raises ForeignWrite if the value is not a number."""
    try:
        found = store.add(key, amount)
    except ValueError as error:
        raise foreign(f"a number under the key {key!r}", str(error)) from error
    return as_number(key, found)


def new_epoch() -> bytes:
    """Return a name that no other epoch has."""
    return secrets.token_hex(8).encode()


def epoch_named(value: bytes) -> str:
    """Return the epoch that the value of `id` names. Any value is valid, because names only distinguish epochs."""
    name = value.decode("latin-1")
    return name if _EPOCH.fullmatch(name) or not name else hashlib.sha256(value).hexdigest()[:16]


def foreign(expected: str, found: str) -> ForeignWrite:
    """Return the error for a value that something else has written under the job's keys."""
    return ForeignWrite(f"expected {expected}, found {found}; choose another run id, or a store that nothing else uses")


def delete(store: Store, key: str) -> bool:
    """Delete the key if the store supports it. Returns whether it was deleted. A key that is not deleted merely costs
    memory."""
    with contextlib.suppress(NotImplementedError, AttributeError):
        return bool(store.delete_key(key))
    return False


def point(store: Store, keys: Keys, seal: Seal, where: str) -> bool:
    """Direct all nodes that find this epoch to another store. Returns False if this is impossible because nodes have
    already agreed on a state in this epoch."""
    pointer, first = seal.sealed(keys.moved, where.encode()), keys.state(1)
    before = peek(store, keys.moved)
    if before is not None:  # a pointer to this address or to an earlier one
        return before == pointer or compare_set(store, keys.moved, before, pointer) == pointer
    if peek(store, first) is not None or as_number(keys.head, peek(store, keys.head) or b"0"):
        return False
    create(store, keys.moved, pointer)
    if create(store, first, _MOVING + seal.sealed(_marker_at(first), b"[]")).startswith(_MOVING):
        return True
    delete(store, keys.moved)  # otherwise, no node could take over this store
    return False


def _marker_at(key: str) -> str:
    """Return the place for which a marker is signed. This place differs from the state's place, so that nodes cannot
    mistake a signed state for a marker."""
    return key + "/moving"


class Version(NamedTuple):
    """Identifies one write by its epoch and the number of its version in that epoch."""

    epoch: str
    number: int


class Versions:
    """Reads and writes versions in one epoch of the store. Only one thread at a time may use an instance.

    Every method raises ForeignWrite if the keys contradict each other, EpochEnded if the nodes have left the epoch, and
    StoreMoving if the store is moving. For `observes`, see `StoreBackend`.
    """

    def __init__(self, keys: Keys, seal: Seal, observes: bool = False) -> None:
        self._keys = keys
        self._seal = seal
        self._observes = observes
        self._known: tuple[int, bytes] | None = None
        self._opened: tuple[tuple[int, bytes], bytes] | None = None
        self._writer = secrets.token_hex(_WRITER // 2).encode()

    def newest(self, store: Store) -> tuple[bytes, Version] | None:
        """Read the newest version. Takes three store operations if nothing has changed. Raises EpochEnded if the newest
        known version is missing or was replaced, because the store has returned with older data."""
        number, head = self._number(), 0
        if not number:
            head = self._head(store)
            number = max(0, head - 1)
        for _ in range(_MOST_READ):
            value = peek(store, self._keys.state(number + 1))
            if value == _LEFT:
                raise EpochEnded
            if value is not None:
                if (heirs := self._heirs(number + 1, value)) is not None:
                    raise StoreMoving(heirs)
                number += 1
                self._known = (number, value)
                continue
            before, head = head, self._head(store) if number or head else 0
            if head <= number and self._is_stored(store):
                return self.standing()
            if head <= number and not self._observes:
                raise EpochEnded("the newest state is missing or differs: the store came back with older data")
            if head <= number:
                self._known, number = None, max(0, head - 1)
            elif head - KEPT > number:
                number = head - 1  # the next versions were deleted
            elif before > number:  # the version existed before this read, and is too new to have been deleted
                raise foreign(f"the state under the key {self._keys.state(number + 1)!r}", f"no state up to {head}")
        raise foreign(f"a head that keeps up with the states under {self._keys.state(number)!r}", f"{head}")

    def leave(self, store: Store) -> None:
        """Wake the thread that waits for the next version in an epoch that has ended. If a client has deleted the keys,
        nothing else would wake that thread, because its connection still works and no node will write that version."""
        if not self._observes:
            create(store, self._keys.state(self._number() + 1), _LEFT)

    def adopt(self, number: int, value: bytes) -> bool:
        """Adopt a version that another thread has read, if it is the next version. Returns whether it was adopted."""
        if number != self._number() + 1 or value == _LEFT or value.startswith(_MOVING):
            return False
        self._known = (number, value)
        return True

    def standing(self) -> tuple[bytes, Version] | None:
        """Return the newest known version. Raises ForeignStateError if no node of this job has written it."""
        if self._known is None:
            return None
        number, value = self._known
        token, key = Version(self._keys.epoch, number), self._keys.state(number)
        if self._opened is None or self._opened[0] != self._known:
            if value[_WRITER : _WRITER + 1] != b":":
                expected = f"a state written by elastic-core under the key {key!r}"
                raise ForeignStateError(str(foreign(expected, repr(value[:60]))), token, not self._seal.signs)
            self._opened = (self._known, self._seal.state(key, value[_WRITER + 1 :], token))
        return self._opened[1], token

    def write(self, store: Store, state: bytes, after: int) -> tuple[bytes, Version, bool] | None:
        """Write version `after` + 1 unless it exists. Returns the newest version, and whether this call wrote it. Each
        value begins with its writer's id. If two nodes write the same state, only one of them is therefore reported as
        the writer. A node that repeats a write also learns whether its first attempt had succeeded. Raises EpochEnded
        if the store no longer has the newest known version."""
        number = after + 1
        value = self._writer + b":" + self._seal.sealed(self._keys.state(number), state)
        if after > self._number() or not self._is_stored(store):
            self.newest(store)
        if after > self._number() or not self._created(store, number, value):
            standing = self.newest(store)
            return None if standing is None else (*standing, False)
        self._known, self._opened = (number, value), ((number, value), state)
        return state, Version(self._keys.epoch, number), True

    def verify(self, store: Store) -> None:
        """Raise EpochEnded if the store has returned with data that is older than the newest known version."""
        if not self._is_stored(store):
            self.newest(store)

    def freeze(self, store: Store, heirs: Sequence[str]) -> None:
        """Prevent further versions in this epoch, because an heir will copy the newest version to the next store."""
        heirs_listed = json.dumps(heirs[:_MOST_HEIRS]).encode()
        for _ in range(_MOST_READ):
            self.newest(store)
            key = self._keys.state(self._number() + 1)
            value = _MOVING + self._seal.sealed(_marker_at(key), heirs_listed)
            if create(store, key, value) == value:
                return
        raise foreign(f"a free key for a version after {self._number()}", "writes by something else")

    def _heirs(self, number: int, value: bytes) -> tuple[str, ...] | None:
        """Return the keys of the heirs that a marker lists, or None if the value is not such a marker."""
        if not value.startswith(_MOVING):
            return None
        try:
            place = _marker_at(self._keys.state(number))
            found = json.loads(self._seal.opened(place, value.removeprefix(_MOVING)) or b"")
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, list) or len(found) > _MOST_HEIRS:
            return None
        return tuple(found) if all(isinstance(key, str) and len(key) <= _LONGEST_KEY for key in found) else None

    def _created(self, store: Store, number: int, value: bytes) -> bool:
        if create(store, self._keys.state(number), value) != value:
            return False
        head = self._raised_head(store, number)
        if head - KEPT < number:
            self._delete_old(store, number - KEPT)
            return True
        if peek(store, self._keys.state(head)) is None:
            raise foreign(f"the state under the key {self._keys.state(head)!r}", f"no state up to {head}")
        delete(store, self._keys.state(number))  # this version existed long ago
        return False

    def _delete_old(self, store: Store, number: int) -> None:
        """Delete this version. If another node wrote the previous version, keep deleting older versions until one is
        already missing, because that node may have stopped before it deleted its own old versions."""
        another = self._known is not None and not self._known[1].startswith(self._writer)
        while number > 0 and delete(store, self._keys.state(number)) and another:
            number -= 1

    def _raised_head(self, store: Store, number: int) -> int:
        """Raise the head to at least this number, and return it. If the node dies before it raises the head, its
        version is still valid. The head then lags until the next write."""
        head = number - 1
        while True:
            found = as_number(self._keys.head, compare_set(store, self._keys.head, b"%d" % head, b"%d" % number))
            if found >= number:
                return found
            absent = found == head  # the key did not exist
            head = as_number(self._keys.head, create(store, self._keys.head, b"0")) if absent else found

    def passed(self, store: Store, number: int) -> bool:
        """Return whether the version after this one has been deleted."""
        return self._head(store) - KEPT > number

    def _head(self, store: Store) -> int:
        """Return the newest version or a slightly older one, or 0 if there is none."""
        if self._observes:
            return as_number(self._keys.head, peek(store, self._keys.head) or b"0")
        return as_number(self._keys.head, create(store, self._keys.head, b"0"))

    def _is_stored(self, store: Store) -> bool:
        return self._known is None or standing(store, self._keys.state(self._known[0])) == self._known[1]

    def _number(self) -> int:
        return self._known[0] if self._known else 0

"""The state of a job in a key-value store, version after version. Every fenced write of the state is in this file.

Version v lives under a key of its own, made by `compare_set(key, "", value)`. This one operation is the fence, because
it fails for all but the first writer, and the push, because nodes that have seen v - 1 wait for that key. `head` names
the newest version. It only grows, may lag behind, and old versions are deleted far behind it: a writer that slept finds
the key of its version absent, and learns from `head` that it is one of the past.

Where something else has written to these keys so that they contradict each other, all nodes leave them behind and begin
another epoch, as in a store that lost its memory. A marker in the place of the next version wakes who waits for that.
A marker of another kind ends the epoch because the store moves, see `handover`: no version can be written after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import SpoiltStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.interfaces.backend import Seal
    from elastic_core.interfaces.store import Store

KEPT = 64  # versions: a writer that falls behind by so many learns that it has not written, even if it has
_WRITER = 8
_MOST_DIGITS = 18
_MOST_READ = 4 * KEPT  # versions in one look: so many cannot be ahead of the head
_NEVER = b"(nobody writes this)"
_LEFT = b"(left for another epoch)"
_MOVING = b"(moving)"
_MOST_HEIRS = 64
_LONGEST_KEY = 510
_EPOCH = re.compile(r"[0-9a-f]{16}")


class Foreign(RendezvousStateError):
    """Something else has written to our keys."""


class EpochLeft(Exception):
    """The nodes have left the epoch of the store in which this was read."""


class Moving(Exception):
    """The store moves to one of these nodes, named by their keys; if there are none, it has moved already."""

    def __init__(self, heirs: tuple[str, ...]) -> None:
        super().__init__(heirs)
        self.heirs = heirs


class Keys:
    """The keys of one job in a store: `id`, and in each epoch of the store all others.

    id        names the epoch: a store that was restarted empty gets another one, and so does one whose keys something
              else has spoilt
    s/<v>     version v of the state
    head      the newest version as a hint: it may lag
    slots     how many slots of the log of announcements were taken
    e/<n>     slot n of that log
    b/<n>/<k> the beats of the node with key k, whose first slot was n; after a loss of data slots are given out again
    base      no live announcement is in a slot before this one
    lead      the leaders' beats
    moved     where the store has moved to; empty if it stays after all
    pointed   how often its host has looked here since, which tells that it lives
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
        return f"{self._prefix}b/{first_slot}/{quote(key, safe='/:')}"


def is_wait_timeout(error: BaseException) -> bool:
    """Whether an operation that waits for a key ended because its time was up. torch has one class for this and other
    refusals of a store, and only the message tells them apart; a broken connection has a class of its own."""
    words = isinstance(error, RuntimeError) and type(error).__name__ != "DistNetworkError"
    return isinstance(error, TimeoutError) or (words and "timeout" in str(error).lower())


def peek(store: Store, key: str) -> bytes | None:
    """The value, or None if there is none. Not by `get`: should the key be deleted between the two operations, that
    would wait for it until the store's own timeout. Nor by `standing` alone, which would do: it wakes everybody who
    waits for a key that is not there yet."""
    return standing(store, key) if store.check([key]) else None


def standing(store: Store, key: str) -> bytes | None:
    """The same in one operation, for a key that nobody waits for: a compare_set that changes nothing."""
    found = compare_set(store, key, _NEVER, _NEVER)
    return None if found == _NEVER else found


def compare_set(store: Store, key: str, expected: bytes, desired: bytes) -> bytes:
    """As the store's own: the value that stands afterwards, or what was expected where none does."""
    return bytes(store.compare_set(key, expected, desired))


def create(store: Store, key: str, value: bytes) -> bytes:
    """Write the value if the key is absent. Returns what stands afterwards."""
    return compare_set(store, key, b"", value)


def as_number(key: str, found: bytes | int) -> int:
    """The number that stands under the key. Raises RendezvousStateError: it is none that we write."""
    digits = found if isinstance(found, bytes) else b"%d" % found
    if not digits.isdigit() or len(digits) > _MOST_DIGITS or (digits[:1] == b"0" and digits != b"0"):
        raise foreign(f"a number under the key {key!r}", repr(digits[:60]))  # who compares and sets writes no 007
    return int(digits)


def add(store: Store, key: str, amount: int) -> int:
    """As the store's own. Raises RendezvousStateError: what stands there is no number, and the store tells."""
    try:
        found = store.add(key, amount)
    except ValueError as error:
        raise foreign(f"a number under the key {key!r}", str(error)) from error
    return as_number(key, found)


def new_epoch() -> bytes:
    """A name that no other epoch has."""
    return secrets.token_hex(8).encode()


def epoch_named(value: bytes) -> str:
    """The epoch that `id` names: any bytes will do, because they only distinguish epochs."""
    name = value.decode("latin-1")
    return name if _EPOCH.fullmatch(name) or not name else hashlib.sha256(value).hexdigest()[:16]


def _expected(key: str) -> str:
    return f"a state written by elastic-core under the key {key!r}"


def foreign(expected: str, found: str) -> Foreign:
    """The error for what something else has written under our keys."""
    return Foreign(f"expected {expected}, found {found}; choose another run id, or a store that nothing else uses")


def delete(store: Store, key: str) -> bool:
    """Remove the key, where the store can; else it stays, which costs memory only. Whether it was there."""
    with contextlib.suppress(NotImplementedError, AttributeError):
        return bool(store.delete_key(key))
    return False


def point(store: Store, keys: Keys, seal: Seal, where: str) -> bool:
    """Let whoever finds this epoch of a store, which holds no state yet, go on elsewhere. Returns false where nodes
    have agreed on a state in it."""
    pointer, first = seal.sealed(keys.moved, where.encode()), keys.state(1)
    before = peek(store, keys.moved)
    if before is not None:  # it is pointed at already, or where the store was
        return before == pointer or compare_set(store, keys.moved, before, pointer) == pointer
    if peek(store, first) is not None or as_number(keys.head, peek(store, keys.head) or b"0"):
        return False
    create(store, keys.moved, pointer)
    if create(store, first, _MOVING + seal.sealed(_marker_at(first), b"[]")).startswith(_MOVING):
        return True
    delete(store, keys.moved)  # or nobody could take this store over
    return False


def _marker_at(key: str) -> str:
    """The place of a marker, for its signature: it passes for no state there, and no state for one."""
    return key + "/moving"


class Version(NamedTuple):
    """Names one write: the epoch of the store, and the number of the version in it."""

    epoch: str
    number: int


class Versions:
    """Reads and writes versions in one epoch of the store. Used from one thread at a time.

    Every method raises Foreign where the keys contradict each other, EpochLeft where the nodes have left the epoch, and
    Moving where the store moves.

    Args:
        keys: of the job, in this epoch.
        seal: signs the states.
        observes: it changes nothing.

    """

    def __init__(self, keys: Keys, seal: Seal, observes: bool = False) -> None:
        self._keys = keys
        self._seal = seal
        self._observes = observes
        self._known: tuple[int, bytes] | None = None
        self._opened: tuple[int, bytes] | None = None
        self._writer = secrets.token_hex(_WRITER // 2).encode()

    def newest(self, store: Store) -> tuple[bytes, Version] | None:
        """Three store operations if nothing has changed. Raises EpochLeft if the newest version known is not stored any
        more, or another one is in its place: the store came back with older data."""
        number, head = self._number(), 0
        if not number:
            head = self._head(store)
            number = max(0, head - 1)
        for _ in range(_MOST_READ):
            value = peek(store, self._keys.state(number + 1))
            if value == _LEFT:
                raise EpochLeft
            if value is not None:
                if (heirs := self._heirs(number + 1, value)) is not None:
                    raise Moving(heirs)
                number += 1
                self._known = (number, value)
                continue
            before, head = head, self._head(store) if number or head else 0
            if head <= number and self._is_stored(store):
                return self.standing()
            if head <= number and not self._observes:
                raise EpochLeft("the newest state is missing or differs: the store came back with older data")
            if head <= number:
                self._known, number = None, max(0, head - 1)
            elif head - KEPT > number:
                number = head - 1  # the next ones were deleted
            elif before > number:  # before it was looked for; and so late a version is not deleted yet
                raise foreign(f"the state under the key {self._keys.state(number + 1)!r}", f"none, but the head {head}")
        raise foreign(f"a head that keeps up with the states under {self._keys.state(number)!r}", f"{head}")

    def leave(self, store: Store) -> None:
        """Wake the thread that waits for the next version, in an epoch that the nodes have left. Nothing else would, if
        a client has deleted the keys: the connection still works, and no node writes that version any more."""
        if not self._observes:
            create(store, self._keys.state(self._number() + 1), _LEFT)

    def adopt(self, number: int, value: bytes) -> bool:
        """Take over a version that another thread has read already. Returns whether it is the next one."""
        if number != self._number() + 1 or value == _LEFT or value.startswith(_MOVING):
            return False
        self._known = (number, value)
        return True

    def standing(self) -> tuple[bytes, Version] | None:
        """The newest version known. Raises SpoiltStateError: it is none of ours."""
        if self._known is None:
            return None
        number, value = self._known
        token, key = Version(self._keys.epoch, number), self._keys.state(number)
        if self._opened is None or self._opened[0] != number:
            if value[_WRITER : _WRITER + 1] != b":":
                raise SpoiltStateError(str(foreign(_expected(key), repr(value[:60]))), token, not self._seal.signs)
            self._opened = (number, self._seal.state(key, value[_WRITER + 1 :], token))
        return self._opened[1], token

    def write(self, store: Store, state: bytes, after: int) -> tuple[bytes, Version, bool] | None:
        """Write version `after` + 1, unless it exists. Returns what stands, and whether it is ours.

        Each value begins with its writer, so that two nodes which write the same state do not both believe they did
        it; one node that repeats a write whose answer was lost learns that it had succeeded.
        """
        number = after + 1
        value = self._writer + b":" + self._seal.sealed(self._keys.state(number), state)
        if not self._exists(store, after) or not self._created(store, number, value):
            standing = self.newest(store)
            return None if standing is None else (*standing, False)
        self._known, self._opened = (number, value), (number, state)
        return state, Version(self._keys.epoch, number), True

    def freeze(self, store: Store, heirs: Sequence[str]) -> None:
        """No version is written in this epoch any more: what stands is what one of these nodes takes along."""
        heirs_listed = json.dumps(heirs[:_MOST_HEIRS]).encode()
        for _ in range(_MOST_READ):
            self.newest(store)
            key = self._keys.state(self._number() + 1)
            value = _MOVING + self._seal.sealed(_marker_at(key), heirs_listed)
            if create(store, key, value) == value:
                return
        raise foreign(f"a place for a version after {self._number()}", "that others write there all the time")

    def _heirs(self, number: int, value: bytes) -> tuple[str, ...] | None:
        """To whom the store moves, if that is what stands there."""
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
            raise foreign(f"the state under the key {self._keys.state(head)!r}", f"none, but the head {head}")
        delete(store, self._keys.state(number))  # it was there before, long ago
        return False

    def _delete_old(self, store: Store, number: int) -> None:
        """This version; if another node wrote the one before ours, also those that it did not come to delete."""
        another = self._known is not None and not self._known[1].startswith(self._writer)
        while number > 0 and delete(store, self._keys.state(number)) and another:
            number -= 1

    def _raised_head(self, store: Store, number: int) -> int:
        """The head, which is at least this number afterwards. A writer that dies before this leaves a head that lags
        until the next write; what it wrote stands."""
        head = number - 1
        while True:
            found = as_number(self._keys.head, compare_set(store, self._keys.head, b"%d" % head, b"%d" % number))
            if found >= number:
                return found
            absent = found == head  # it was not there at all
            head = as_number(self._keys.head, create(store, self._keys.head, b"0")) if absent else found

    def passed(self, store: Store, number: int) -> bool:
        """Whether the version after this one was there and has been deleted."""
        return self._head(store) - KEPT > number

    def _head(self, store: Store) -> int:
        """The newest version, or one that was it a short while ago; 0 for none."""
        if self._observes:
            return as_number(self._keys.head, peek(store, self._keys.head) or b"0")
        return as_number(self._keys.head, create(store, self._keys.head, b"0"))

    def _exists(self, store: Store, number: int) -> bool:
        if number > self._number():
            self.newest(store)
        return number <= self._number()

    def _is_stored(self, store: Store) -> bool:
        """Whether the newest version known is."""
        return self._known is None or standing(store, self._keys.state(self._known[0])) == self._known[1]

    def _number(self) -> int:
        return self._known[0] if self._known else 0

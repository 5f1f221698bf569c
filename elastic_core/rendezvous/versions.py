"""The state of a job in a key-value store, version after version. Every fenced write of the state is in this file.

Version v lives under a key of its own, made by `compare_set(key, "", value)`. This one operation is the fence, because
it fails for all but the first writer, and the push, because nodes that have seen v - 1 wait for that key. `head` names
the newest version. It only grows, may lag behind, and old versions are deleted far behind it: a writer that slept finds
the key of its version absent, and learns from `head` that it is one of the past.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.errors import RendezvousStateError

if TYPE_CHECKING:
    from elastic_core.interfaces.store import Store

KEPT = 64  # versions: a writer that falls behind by so many learns that it has not written, even if it has
_WRITER = 8
_MOST_DIGITS = 18
_NEVER = b"(nobody writes this)"


class Keys:
    """The keys of one job in a store.

    id        names the epoch of the store: one that was restarted empty gets another
    s/<v>     version v of the state
    head      the newest version as a hint: it may lag
    slots     how many slots of the log of announcements were taken
    e/<n>     slot n of that log
    b/<n>     the beats of the node whose first slot was n
    base      no live announcement is in a slot before this one
    lead      the leaders' beats
    """

    def __init__(self, run_id: str) -> None:
        self._prefix = f"elastic/{run_id}/"
        self.id = self._prefix + "id"
        self.head = self._prefix + "head"
        self.slots = self._prefix + "slots"
        self.base = self._prefix + "base"
        self.lead = self._prefix + "lead"

    def state(self, version: int) -> str:
        return f"{self._prefix}s/{version}"

    def slot(self, number: int) -> str:
        return f"{self._prefix}e/{number}"

    def beats(self, first_slot: int) -> str:
        return f"{self._prefix}b/{first_slot}"


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
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise foreign(f"a number under the key {key!r}", repr(digits[:60]))
    return int(digits)


def add(store: Store, key: str, amount: int) -> int:
    """As the store's own. Raises RendezvousStateError: what stands there is no number, and the store tells."""
    try:
        found = store.add(key, amount)
    except ValueError as error:
        raise foreign(f"a number under the key {key!r}", str(error)) from error
    return as_number(key, found)


def foreign(expected: str, found: str) -> RendezvousStateError:
    """The error for what something else has written under our keys."""
    return RendezvousStateError(
        f"expected {expected}, found {found}; choose another run id, or a store that nothing else uses"
    )


def delete(store: Store, key: str) -> bool:
    """Remove the key, where the store can; else it stays, which costs memory only. Whether it was there."""
    with contextlib.suppress(NotImplementedError, AttributeError):
        return bool(store.delete_key(key))
    return False


class Version(NamedTuple):
    """Names one write: the epoch of the store, and the number of the version in it."""

    epoch: str
    number: int


class Versions:
    """Reads and writes versions in one epoch of the store. Used from one thread at a time.

    Args:
        keys: of the job.
        epoch: the store's.
        observes: it changes nothing.

    Attributes:
        doubtful: whether the head lagged behind the newest version known at the last look: its writer has died early,
            or the store began anew.
    """

    def __init__(self, keys: Keys, epoch: str, observes: bool = False) -> None:
        self._keys = keys
        self._epoch = epoch
        self._observes = observes
        self._known: tuple[int, bytes] | None = None
        self.doubtful = False
        self._writer = secrets.token_hex(_WRITER // 2).encode()

    def newest(self, store: Store) -> tuple[bytes, Version] | None:
        """Two store operations when nothing has changed."""
        number, head = self._number(), 0
        if not number:
            head = self._head(store)
            number = max(0, head - 1)
        while True:
            value = peek(store, self._keys.state(number + 1))
            if value is not None:
                number += 1
                self._known = (number, value)
                continue
            told, head = head, self._head(store) if number or head else 0
            if head <= number:
                self.doubtful = head < number
                return self._shown()
            if head - KEPT > number:
                number = head - 1  # the next ones were deleted
            elif told > number:  # before it was looked for; and so late a version is not deleted yet
                raise foreign(f"the state under the key {self._keys.state(number + 1)!r}", f"none, but the head {head}")

    def lost(self, store: Store) -> bool:
        """Whether the store has lost the newest version known, as one that came back with older data: asked when the
        head is behind it."""
        return self._known is not None and peek(store, self._keys.state(self._known[0])) is None

    def adopt(self, number: int, value: bytes) -> bool:
        """Take over a version that another thread has read already. Returns whether it is the next one."""
        if number != self._number() + 1:
            return False
        self._known = (number, value)
        return True

    def standing(self) -> tuple[bytes, Version] | None:
        """The newest version known."""
        return self._shown()

    def write(self, store: Store, state: bytes, after: int) -> tuple[bytes, Version, bool] | None:
        """Write version `after` + 1, unless it exists. Returns what stands, and whether it is ours.

        Each value begins with its writer, so that two nodes which write the same state do not both believe they did
        it; one node that repeats a write whose answer was lost learns that it had succeeded.
        """
        number = after + 1
        value = self._writer + b":" + state
        if not self._exists(store, after) or not self._created(store, number, value):
            standing = self.newest(store)
            return None if standing is None else (*standing, False)
        self._known = (number, value)
        return state, Version(self._epoch, number), True

    def _created(self, store: Store, number: int, value: bytes) -> bool:
        if create(store, self._keys.state(number), value) != value:
            return False
        if self._raised_head(store, number) - KEPT < number:
            self._delete_old(store, number - KEPT)
            return True
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

    def _number(self) -> int:
        return self._known[0] if self._known else 0

    def _shown(self) -> tuple[bytes, Version] | None:
        if self._known is None:
            return None
        number, value = self._known
        if value[_WRITER : _WRITER + 1] != b":":
            key = self._keys.state(number)
            raise foreign(f"a state written by elastic-core under the key {key!r}", repr(value[:60]))
        return value[_WRITER + 1 :], Version(self._epoch, number)

"""The state of a job in a key-value store, version after version. Every fenced write of the state is in this file.

Version v lives under a key of its own, made by `compare_set(key, "", value)`. This one operation is the fence, because
it fails for all but the first writer, and the push, because nodes that have seen v - 1 wait for that key. `head` names
the newest version. It only grows, may lag behind, and old versions are deleted far behind it: a writer that slept finds
the key of its version absent, and learns from `head` that it is one of the past.

Where something else has written to these keys so that they contradict each other, all nodes leave them behind and begin
another epoch, as in a store that lost its memory. A marker in the place of the next version wakes who waits for that.

If the store moves (see `handover`), its host first writes an offer: a version that repeats the current state, if there
is one, and names the heirs. A forward, the store's new address, then takes the place of the next version.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.backend import SpoiltStateError
from elastic_core.support.addresses import split_host_port

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
_OFFER = b"(offer)"
_FORWARD = b"(forward)"
_MOST_HEIRS = 64
_LONGEST_ADDRESS = 1024
_EPOCH = re.compile(r"[0-9a-f]{16}")


class Foreign(RendezvousStateError):
    """Something else has written to our keys."""


class EpochLeft(Exception):
    """The nodes have left the epoch of the store in which this was read."""


class Forwarded(Exception):
    """The store has moved: a forward to `where` follows the newest version."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class Keys:
    """The keys of one job in a store: `id`, and in each epoch of the store all others.

    id        names the epoch: a store that was restarted empty gets another one, and so does one whose keys something
              else has spoilt
    s/<v>     version v of the state, or a forward
    head      the newest version as a hint: it may lag
    slots     how many slots of the log of announcements were taken
    e/<n>     slot n of that log
    b/<n>/<k> the beats of the node with key k, whose first slot was n; after a loss of data slots are given out again
    base      no live announcement is in a slot before this one
    lead      the leaders' beats
    pointed   how often the store's host, which is elsewhere, has checked this store: if this grows, the host is alive
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


class Version(NamedTuple):
    """Names one write: the epoch of the store, and the number of the version in it."""

    epoch: str
    number: int


class Versions:
    """Reads and writes versions in one epoch of the store. Used from one thread at a time.

    Every method raises Foreign where the keys contradict each other, EpochLeft where the nodes have left the epoch, and
    Forwarded where the store has moved.

    Args:
        keys: of the job, in this epoch.
        seal: signs the states.
        observes: it changes nothing.

    Attributes:
        heirs: the heirs' keys, in the order in which they take over, from the last offer; empty if there was none.
    """

    def __init__(self, keys: Keys, seal: Seal, observes: bool = False) -> None:
        self._keys = keys
        self._seal = seal
        self._observes = observes
        self._known: tuple[int, bytes] | None = None
        self._opened: tuple[int, bytes] | None = None
        self.heirs: tuple[str, ...] = ()
        self._writer = secrets.token_hex(_WRITER // 2).encode()

    def newest(self, store: Store) -> tuple[bytes, Version] | None:
        """Three store operations if nothing has changed. Raises EpochLeft if the newest version known is not stored any
        more, or another one is in its place: the store came back with older data."""
        number, head = self.number, 0
        if not number:
            head = self._head(store)
            number = max(0, head - 1)
        for _ in range(_MOST_READ):
            value = peek(store, self._keys.state(number + 1))
            if value == _LEFT:
                raise EpochLeft
            if value is not None:
                if where := self._address_in(number + 1, value):
                    raise Forwarded(where)
                number += 1
                self._learn(number, value)
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
            create(store, self._keys.state(self.number + 1), _LEFT)

    def adopt(self, number: int, value: bytes) -> bool:
        """Take over a version that another thread has read already. Returns whether it is the next one."""
        if number != self.number + 1 or value == _LEFT or value.startswith(_FORWARD):
            return False
        self._learn(number, value)
        return True

    def standing(self) -> tuple[bytes, Version] | None:
        """The newest version known. Raises SpoiltStateError: it is none of ours."""
        if self._known is None:
            return None
        number, value = self._known[0], _without_offer(self._known[1])
        if not value:
            return None
        token, key = Version(self._keys.epoch, number), self._keys.state(number)
        if self._opened is None or self._opened[0] != number:
            if value[_WRITER : _WRITER + 1] != b":":
                raise SpoiltStateError(str(foreign(_expected(key), repr(value[:60]))), token, not self._seal.signs)
            self._opened = (number, self._seal.state(key, value[_WRITER + 1 :], token))
        return self._opened[1], token

    def write(
        self, store: Store, state: bytes | None, after: int, heirs: Sequence[str] = ()
    ) -> tuple[bytes, Version, bool] | None:
        """Write version `after` + 1, unless it exists. Returns the newest state, its version, and whether this call
        wrote it; None if there is no state. With `heirs`, the version is an offer to them.

        Each value begins with its writer, so that two nodes which write the same state do not both believe they did
        it; one node that repeats a write whose answer was lost learns that it had succeeded.
        """
        number = after + 1
        key = self._keys.state(number)
        value = b"" if state is None else self._writer + b":" + self._seal.sealed(key, state)
        if heirs:
            listed = " ".join(map(quote, heirs[:_MOST_HEIRS])).encode()
            value = _OFFER + self._seal.sealed(key + "/offer", listed) + b"\n" + value
        if not self._exists(store, after) or not self._created(store, number, value):
            standing = self.newest(store)
            return None if standing is None else (*standing, False)
        self._learn(number, value)
        self._opened = None if state is None else (number, state)
        return state or b"", Version(self._keys.epoch, number), True

    def offer(self, store: Store, heirs: Sequence[str]) -> None:
        """Write an offer: a version with the same state that names these heirs by their keys."""
        for _ in range(_MOST_READ):
            found = self.newest(store)
            written = self.write(store, found and found[0], self.number, heirs)
            if written is not None and written[2]:
                return
        raise foreign(f"a free key after version {self.number}", "that other clients fill it every time")

    def forward(self, store: Store, where: str) -> bool:
        """Write a forward to `where` after the newest version known. Returns False if another record came first: a
        version, or another node's forward. A pointer (a forward in the place of version 1) is replaced."""
        number = self.number + 1
        key = self._keys.state(number)
        value = _FORWARD + self._seal.sealed(key + "/forward", where.encode())
        found = create(store, key, value)
        if number == 1 and found != value and self._address_in(number, found):
            found = compare_set(store, key, found, value)
        if found == value and self._head(store) - KEPT >= number:
            delete(store, key)  # the number was used long ago, and its version has been deleted
            return False
        return found == value

    def _learn(self, number: int, value: bytes) -> None:
        """Record the newest version, and its heirs if it is an offer."""
        self._known = (number, value)
        if value.startswith(_OFFER):
            line = value.removeprefix(_OFFER).partition(b"\n")[0]
            listed = self._seal.opened(self._keys.state(number) + "/offer", line) or b""
            self.heirs = tuple(map(unquote, listed.decode(errors="replace").split()[:_MOST_HEIRS]))

    def _address_in(self, number: int, value: bytes) -> str:
        """The address that this forward names; empty if the value is not a valid forward."""
        if not value.startswith(_FORWARD):
            return ""
        opened = self._seal.opened(self._keys.state(number) + "/forward", value.removeprefix(_FORWARD)) or b""
        where = opened[:_LONGEST_ADDRESS].decode(errors="replace")
        try:
            return where if split_host_port(where, 0)[1] else ""
        except ValueError:
            return ""

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
        another = self._known is not None and not _without_offer(self._known[1]).startswith(self._writer)
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
        if number > self.number:
            self.newest(store)
        return number <= self.number

    def _is_stored(self, store: Store) -> bool:
        """Whether the newest version known is."""
        return self._known is None or standing(store, self._keys.state(self._known[0])) == self._known[1]

    @property
    def number(self) -> int:
        """The number of the newest version known, 0 if there is none."""
        return self._known[0] if self._known else 0

    @property
    def offer_before_state(self) -> int:
        """The version after which the first state is written: an offer made before any state, or 0. Also 0 once there
        is a state."""
        return self.number if self._known is not None and not _without_offer(self._known[1]) else 0


def _without_offer(value: bytes) -> bytes:
    return value.partition(b"\n")[2] if value.startswith(_OFFER) else value

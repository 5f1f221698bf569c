"""The state of the job, version after version. Every fenced write of the state is in this file.

Version v lives under a key of its own, made by `compare_set(key, "", value)`. This one operation is the fence, because
it fails for everybody but the first, and the push, because whoever has seen v - 1 blocks in `wait` for that key.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from elastic_c10d.keys import create, peek
from elastic_core.errors import RendezvousStateError

if TYPE_CHECKING:
    from elastic_c10d.keys import Keys
    from elastic_c10d.torch_store import Store

KEPT = 16
_TOMBSTONE = b"-"
_WRITER = 8


class Version(NamedTuple):
    """Names one write: the life of the store, and the number of the version in it."""

    life: str
    number: int


class Versions:
    """Reads and writes versions in one life of the store. Used from one thread at a time.

    Args:
        keys: of the job.
        life: the store's.
    """

    def __init__(self, keys: Keys, life: str) -> None:
        self._keys = keys
        self._life = life
        self._known: tuple[int, bytes] | None = None
        self._writer = secrets.token_hex(_WRITER // 2).encode()

    def newest(self, store: Store) -> tuple[bytes, Version] | None:
        """One store operation when nothing has changed."""
        number = self._number() or max(0, _hint(store, self._keys) - 1)
        while (value := peek(store, self._keys.state(number + 1))) is not None:
            number += 1
            if value == _TOMBSTONE:
                number = max(number, _hint(store, self._keys) - 1)
            else:
                self._known = (number, value)
        return self._shown()

    def adopt(self, number: int, value: bytes) -> bool:
        """Take over a version that somebody has read already. Whether it is the next one; else read."""
        if number != self._number() + 1 or value == _TOMBSTONE:
            return False
        self._known = (number, value)
        return True

    def standing(self) -> tuple[bytes, Version] | None:
        """The newest version known."""
        return self._shown()

    def write(self, store: Store, state: bytes, after: int) -> tuple[bytes, Version, bool] | None:
        """Write version `after` + 1, unless somebody has. Returns what stands, and whether it is ours.

        Each value begins with its writer, so that two nodes which write the same state do not both believe they did
        it; one node that repeats a write whose answer was lost learns that it had succeeded.
        """
        number = after + 1
        value = self._writer + b":" + state
        if not self._exists(store, after) or create(store, self._keys.state(number), value) != value:
            standing = self.newest(store)
            return None if standing is None else (*standing, False)
        self._known = (number, value)
        self._tidy(store, number)
        return state, Version(self._life, number), True

    def _exists(self, store: Store, number: int) -> bool:
        if number > self._number():
            self.newest(store)
        return number <= self._number()

    def _number(self) -> int:
        return self._known[0] if self._known else 0

    def _tidy(self, store: Store, number: int) -> None:
        """A version that is long past becomes a tombstone. It is never deleted: a writer that read version v - 1, was
        stopped for an hour and then goes on would find the key of v absent, and its write, fenced by nothing but that
        key, would succeed behind everybody's back. Who dies before this leaves a few bytes more and a hint that lags
        until the next write; what it wrote stands. So do faults here: the next operation tells of them."""
        try:
            store.set(self._keys.head, str(number))
            if number > KEPT:
                store.set(self._keys.state(number - KEPT), _TOMBSTONE.decode())
        except RuntimeError:
            pass

    def _shown(self) -> tuple[bytes, Version] | None:
        if self._known is None:
            return None
        number, value = self._known
        if value[_WRITER : _WRITER + 1] != b":":
            raise RendezvousStateError(
                f"expected a state written by elastic-c10d under the key {self._keys.state(number)!r}, "
                f"found {value[:60]!r}; choose another run id, or a store that nothing else uses"
            )
        return value[_WRITER + 1 :], Version(self._life, number)


def _hint(store: Store, keys: Keys) -> int:
    """The newest version, or one that was it a short while ago. A slow writer may set it back for a while."""
    found = create(store, keys.head, b"0")
    if not found.isdigit():
        raise RendezvousStateError(f"expected a number under the key {keys.head!r}, found {found[:60]!r}")
    return int(found)

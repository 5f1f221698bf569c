"""What a torch store does, on etcd and without torch. The meaning of every operation is TCPStore's.

`add` and `append` write on the condition that nobody wrote in between, and else try again with what is there now. Who
has lost twice waits a random time before the next attempt, longer after every loss up to a bound that is the same for
all: so those who came first are not worse off than newcomers for long, and etcd is not flooded with attempts in vain.
Measured: 128 at once need about 8 transactions for an addition, where all who try at once would need 64.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, NamedTuple

from elastic_etcd.client.values import Compare, Delete, Field, Get, Put, absent
from elastic_etcd.store_keys import MOST_BYTES, MOST_OPERATIONS, expect_small
from elastic_etcd.store_writer import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_etcd.client.values import KeyValue
    from elastic_etcd.store_deadline import Deadline
    from elastic_etcd.store_keys import StoreKeys
    from elastic_etcd.store_reader import Reader
    from elastic_etcd.store_writer import Writer

_MOST_COUNTERS = 1024
_FIRST_WAIT, _LONGEST_WAIT = 0.004, 0.1  # seconds, after lost races


class Seen(NamedTuple):
    """A key as it was last seen: the revision of its last write, 0 if it did not exist."""

    revision: int = 0
    value: bytes = b""


class Operations:
    """Every method takes the deadline until when it waits, or tries again while no member answers.

    Every method raises EtcdUnreachable (with `landed`, a write may have been carried out), EtcdRefused and EtcdClosed,
    and ValueError when keys and values are too much for one request.

    Args:
        lease: that all keys are attached to; 0 for none.
    """

    def __init__(self, keys: StoreKeys, reader: Reader, writer: Writer, lease: int = 0) -> None:
        self._keys = keys
        self._reader = reader
        self._writer = writer
        self._lease = lease
        # What our last `add` to a key left there is the best guess at what the next one finds: a guess that is right
        # saves the reading, one that is wrong costs no more than that.
        self._counters: dict[bytes, Seen] = {}

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Raises KeysMissing."""
        at = self._keys.of(key)
        found = self._reader.one(at, deadline) or self._reader.wait([at], deadline)[at]
        return found.value

    def set(self, key: str, value: bytes, deadline: Deadline) -> None:
        self._write_all([self._small_put(key, value)], deadline)

    def add(self, key: str, amount: int, deadline: Deadline) -> int:
        """Raises ValueError when the value is no number."""
        at = self._keys.of(key)
        if amount == 0 and (found := self._reader.one(at, deadline)):
            return _number(key, found.value)
        seen = self._counters.pop(at, Seen())
        left = self._change(at, seen, lambda value: b"%d" % _wrapped(_number(key, value) + amount), deadline)
        if len(self._counters) >= _MOST_COUNTERS:
            self._counters.clear()
        self._counters[at] = left
        return int(left.value)

    def append(self, key: str, value: bytes, deadline: Deadline) -> None:
        self._change(self._keys.of(key), Seen(), lambda before: before + value, deadline)

    def compare_set(self, key: str, expected: bytes, desired: bytes, deadline: Deadline) -> bytes:
        """An empty `expected` means an empty value as well as none: one is guessed, and the other tried then."""
        at = self._keys.of(key)
        expect_small(at, at, expected, desired)
        condition = Compare(at, Field.VALUE, expected) if expected else absent(at)
        while True:
            outcome = self._writer.write([condition], [self._put(at, desired)], [Get(at)], deadline)
            if not isinstance(outcome, Refusal):
                return desired
            found = outcome.first
            if found is None and expected:
                return expected
            if found is not None and found.value != expected:
                return found.value
            condition = Compare(at, Field.VALUE, expected) if found else absent(at)

    def delete_key(self, key: str, deadline: Deadline) -> bool:
        at = self._keys.of(key)
        found = self._reader.one(at, deadline)
        while found is not None:
            condition = Compare(at, Field.MODIFIED, found.mod_revision)
            outcome = self._writer.write([condition], [Delete(at)], [Get(at, keys_only=True)], deadline)
            if not isinstance(outcome, Refusal):
                return True
            found = outcome.first
        return False

    def wait(self, keys: Sequence[str], deadline: Deadline) -> None:
        """Raises KeysMissing."""
        self._reader.wait([self._keys.of(key) for key in keys], deadline, keys_only=True)

    def check(self, keys: Sequence[str], deadline: Deadline) -> bool:
        wanted = {self._keys.of(key) for key in keys}
        return len(self._reader.those(sorted(wanted), deadline, keys_only=True)[1]) == len(wanted)

    def list_keys(self, deadline: Deadline) -> list[str]:
        found = self._reader.every(self._keys.data, self._keys.data_end, deadline)
        return [self._keys.name(pair.key) for pair in found]

    def multi_get(self, keys: Sequence[str], deadline: Deadline) -> list[bytes]:
        """Raises KeysMissing."""
        wanted = [self._keys.of(key) for key in keys]
        distinct = list(dict.fromkeys(wanted))
        while len(found := self._reader.those(distinct, deadline)[1]) < len(distinct):
            self._reader.wait(distinct, deadline, keys_only=True)
        return [found[key].value for key in wanted]

    def multi_set(self, values: Mapping[str, bytes], deadline: Deadline) -> None:
        """At once, or not at all, if they fit into one transaction: 120 keys, 1.5 MiB. Else one transaction after the
        other, each of them whole."""
        puts = [self._small_put(key, value) for key, value in values.items()]
        for batch in _batches(puts):
            self._write_all(batch, deadline)

    def _write_all(self, puts: Sequence[Put], deadline: Deadline) -> None:
        while isinstance(self._writer.write((), puts, (), deadline), Refusal):
            pass  # our note was deleted by somebody who cleaned up; the next one is new

    def _small_put(self, key: str, value: bytes) -> Put:
        put = self._put(self._keys.of(key), value)
        expect_small(put.key, put.value)
        return put

    def _put(self, at: bytes, value: bytes) -> Put:
        return Put(at, value, self._lease)

    def _change(self, at: bytes, seen: Seen, change: Callable[[bytes], bytes], deadline: Deadline) -> Seen:
        """Replace the value by what `change` makes of it (of an empty one, if there is none)."""
        for losses in itertools.count():
            value = change(seen.value)
            expect_small(at, at, value)
            condition = Compare(at, Field.MODIFIED, seen.revision)
            outcome = self._writer.write([condition], [self._put(at, value)], [Get(at)], deadline)
            if not isinstance(outcome, Refusal):
                return Seen(outcome.revision, value)
            seen = _seen(outcome.first)
            if losses:  # the first one was a guess
                self._writer.pause(random.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(losses, 9))))
        raise AssertionError("counting has no end")


def _seen(found: KeyValue | None) -> Seen:
    return Seen(found.mod_revision, found.value) if found else Seen()


def _number(key: str, value: bytes) -> int:
    try:
        return int(value or b"0")
    except ValueError:
        raise ValueError(f"expected a number at the key {key!r}, to add to, found {value[:40]!r}") from None


def _wrapped(number: int) -> int:
    """In 64 bits, as torch's counters are."""
    return (number + 2**63) % 2**64 - 2**63


def _batches(puts: Sequence[Put]) -> Iterator[list[Put]]:
    batch: list[Put] = []
    size = 0
    for put in puts:
        more = len(put.key) + len(put.value)
        if batch and (len(batch) == MOST_OPERATIONS or size + more > MOST_BYTES - 64 * MOST_OPERATIONS):
            yield batch
            batch, size = [], 0
        batch.append(put)
        size += more
    if batch:
        yield batch

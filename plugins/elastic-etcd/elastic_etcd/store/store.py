"""A store in etcd, whose operations behave like TCPStore's. `torch_store.py` makes it a torch store.

`reader.py` reads and waits, and `writer.py` ensures that every write takes effect exactly once. `add` and `append`
write on the condition that the value is unchanged. If it has changed, they try again with the current value. After a
client has lost two such races, it waits for a random time before each attempt, up to a limit that is the same for all
clients. The waits keep failing attempts from flooding etcd, and the common limit gives all clients the same chance.
In a measurement, 128 concurrent additions took about 8 transactions each, compared with 64 without waiting.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from elastic_core.plugin import Backoff, Clock, SystemClock
from elastic_etcd.client.messages import REQUEST_BYTES
from elastic_etcd.client.values import Compare, Delete, Field, Get, KeyValue, Put, Transaction, absent, end_of
from elastic_etcd.store.reader import Reader
from elastic_etcd.store.writer import MOST_OPERATIONS, Deadline, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from elastic_etcd.client.client import EtcdClient

_TIMEOUT = timedelta(seconds=300)
_MOST_BYTES = REQUEST_BYTES - 4096  # the size of the keys and values in a request of 1.5 MiB
_MOST_COUNTERS = 1024
_WAITS = Backoff(first=0.008, longest=0.1)  # pauses after lost races

_COUNTER = re.compile(rb"\s{0,20}[-+]?[0-9]{1,20}\s{0,20}")  # a number in the form that torch's stores accept
_ABSENT = KeyValue(b"", b"", 0, 0, 0, 0)  # a key that does not exist
_open_stores: set[KeyStore] = set()
"""Keeps open stores alive. torch's C++ side (PrefixStore, process groups) holds only the C++ half of a store. Once
Python has deleted the other half, every call fails."""


class KeyStore:
    """The store for programs that have not imported torch. Unlike `EtcdStore`, it does not raise torch's errors."""

    _errors: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    timeout = _TIMEOUT

    def __init__(
        self,
        etcd_client: EtcdClient,
        etcd_store_prefix: str,
        timeout: timedelta | None = None,
        clock: Clock | None = None,
        lease: int | Callable[[], int] = 0,
        owns_client: bool = False,
    ) -> None:
        super().__init__()
        self._client = etcd_client
        self._prefix = etcd_store_prefix
        self._clock: Clock = clock or SystemClock()
        self._lease = lease
        self._owns_client = owns_client
        base = f"/{etcd_store_prefix.strip('/')}/".encode() if etcd_store_prefix.strip("/") else b"/"
        self._data = base + b"k/"
        self._closed = threading.Event()
        self._reader = Reader(etcd_client, self._name, self._clock, self._closed)
        self._writer = Writer(etcd_client, base + b"w/", self._found_lease, self._clock)
        # The result of our last `add` to a key, which serves as a guess at the current value. A correct guess saves a
        # read. A wrong guess costs only as much as a read.
        self._counters: dict[bytes, KeyValue] = {}
        self.set_timeout(timeout or _TIMEOUT)
        _open_stores.add(self)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long to wait for keys to appear and for etcd to answer."""
        self.timeout = timeout

    def get(self, key: str) -> bytes:
        """Return the value, after waiting for the key to appear."""
        at, deadline = self._at(key), self._deadline()
        with self._errors:
            found = self._reader.one(at, deadline) or self._reader.wait([at], deadline)[at]
            return found.value

    def set(self, key: str, value: str | bytes) -> None:
        """Write the value."""
        self.multi_set([key], [value])

    def add(self, key: str, num: int) -> int:
        """Add to a counter and return its new value. A counter starts at 0 and is stored as a decimal string. `add(key,
        0)` reads an existing counter."""
        at, deadline = self._at(key), self._deadline()
        with self._errors:
            if num == 0 and (found := self._reader.one(at, deadline)):
                return _number(key, found.value)
            known = self._counters.pop(at, _ABSENT)
            left = self._change(at, known, lambda value: b"%d" % _wrapped(_number(key, value) + num), deadline)
            if len(self._counters) >= _MOST_COUNTERS:
                self._counters.clear()
            self._counters[at] = left
            return int(left.value)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Write `desired_value` if the current value is `expected_value`. An empty `expected_value` also matches a
        missing key. Returns the value that the key has afterwards, or `expected_value` if the key is missing and a
        non-empty value was expected."""
        at, expected, desired = self._at(key), _as_bytes(expected_value), _as_bytes(desired_value)
        _expect_small(at, at, expected, desired)
        deadline, put = self._deadline(), Put(at, desired)
        # An empty expectation matches both an empty value and a missing key, so try one and then the other.
        condition = Compare(at, Field.VALUE, expected) if expected else absent(at)
        with self._errors:
            while True:
                outcome = self._writer.write(Transaction([condition], [put], [Get(at)]), deadline)
                if outcome.succeeded:
                    return desired
                found = outcome.ranges[0].first
                if found is None and expected:
                    return expected
                if found is not None and found.value != expected:
                    return found.value
                condition = Compare(at, Field.VALUE, expected) if found else absent(at)

    def wait(self, keys: Sequence[str], override_timeout: timedelta | None = None) -> None:
        """Block until all keys exist."""
        deadline = self._deadline(override_timeout)
        with self._errors:
            self._reader.wait([self._at(key) for key in keys], deadline, keys_only=True)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        wanted = {self._at(key) for key in keys}
        with self._errors:
            return len(self._reader.those(sorted(wanted), self._deadline(), keys_only=True)[1]) == len(wanted)

    def delete_key(self, key: str) -> bool:
        """Delete the key, and return whether it existed."""
        at, deadline = self._at(key), self._deadline()
        with self._errors:
            found = self._reader.one(at, deadline)
            while found is not None:
                condition = Compare(at, Field.MODIFIED, found.mod_revision)
                outcome = self._writer.write(
                    Transaction([condition], [Delete(at)], [Get(at, keys_only=True)]), deadline
                )
                if outcome.succeeded:
                    return True
                found = outcome.ranges[0].first
            return False

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """Return all keys, oldest first."""
        begin, end, deadline = self._data, end_of(self._data), self._deadline()
        with self._errors:
            found = deadline.patiently(lambda: self._client.read(begin, end, keys_only=True))
        return [self._name(pair.key) for pair in found.values]

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value. A missing key is treated as empty."""
        added = _as_bytes(value)
        with self._errors:
            self._change(self._at(key), _ABSENT, lambda before: before + added, self._deadline())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values, after waiting for all keys to appear. Up to 120 keys are read in a single step, provided
        that their values do not exceed 64 MiB."""
        wanted, deadline = [self._at(key) for key in keys], self._deadline()
        distinct = list(dict.fromkeys(wanted))
        with self._errors:
            while len(found := self._reader.those(distinct, deadline)[1]) < len(distinct):
                self._reader.wait(distinct, deadline, keys_only=True)
        return [found[key].value for key in wanted]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write all values. The write is atomic for at most 120 keys and 1.5 MiB. Larger writes take several such
        steps. Other clients may read between the steps, and after an error, some steps may not have taken
        effect."""
        if len(keys) != len(values):
            raise ValueError(f"expected as many keys as values, found {len(keys)} keys and {len(values)} values")
        pairs = dict(zip(keys, values, strict=True))
        puts, deadline = [Put(self._at(key), _as_bytes(value)) for key, value in pairs.items()], self._deadline()
        for put in puts:
            _expect_small(put.key, put.value)
        with self._errors:
            for batch in _batches(puts):
                while not self._writer.write(Transaction((), batch), deadline).succeeded:
                    pass  # another client has deleted our marker; the next attempt uses a new one

    def has_extended_api(self) -> bool:
        """Return whether append, multi_get and multi_set are available."""
        return True

    def clone(self) -> Self:
        """Return another store with the same keys and client. This store still owns the client."""
        return type(self)(self._client, self._prefix, self.timeout, self._clock, self._lease)

    def close(self) -> None:
        """Make waiting calls raise an error, and delete the write markers. The store cannot be used afterwards.
        Idempotent."""
        if self not in _open_stores:
            return
        _open_stores.discard(self)
        self._closed.set()
        self._reader.close()
        self._writer.forget()
        if self._owns_client:
            self._client.close()

    deleteKey = delete_key  # noqa: N815  # the names by which PrefixStore calls these
    getNumKeys = num_keys  # noqa: N815

    def _at(self, key: str) -> bytes:
        """The etcd key for the user's key."""
        return self._data + key.encode()

    def _name(self, at: bytes) -> str:
        """The user's key; the inverse of `_at`."""
        return at[len(self._data) :].decode(errors="replace")

    def _deadline(self, patience: timedelta | None = None) -> Deadline:
        return Deadline(self._clock, self.timeout if patience is None else patience, self._closed)

    def _found_lease(self, deadline: Deadline) -> int:
        if not isinstance(self._lease, int):
            self._lease = deadline.patiently(self._lease)
        return self._lease

    def _change(self, at: bytes, known: KeyValue, change: Callable[[bytes], bytes], deadline: Deadline) -> KeyValue:
        """Replace the value with `change(value)`. A missing key is treated as empty. `known` may be out of date."""
        for losses in itertools.count():
            value = change(known.value)
            _expect_small(at, at, value)
            condition, put = Compare(at, Field.MODIFIED, known.mod_revision), Put(at, value)
            outcome = self._writer.write(Transaction([condition], [put], [Get(at)]), deadline)
            if outcome.succeeded:
                return _ABSENT._replace(value=value, mod_revision=outcome.revision)
            known = outcome.ranges[0].first or _ABSENT
            if losses:  # the first value was only a guess
                self._closed.wait(random.uniform(0, _WAITS.pause(losses)))
        raise AssertionError("unreachable: the loop has no end")


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _number(key: str, value: bytes) -> int:
    if value and not _COUNTER.fullmatch(value):
        raise ValueError(f"cannot add to key {key!r}: expected a number, found {value[:40]!r}")
    return _wrapped(int(value or b"0"))


def _wrapped(number: int) -> int:
    """Wrap to 64 bits, like torch's counters."""
    return (number + 2**63) % 2**64 - 2**63


def _expect_small(*parts: bytes) -> None:
    size = sum(map(len, parts))
    if size > _MOST_BYTES:
        raise ValueError(
            f"one write may contain at most {_MOST_BYTES} bytes of keys and values (etcd's limit), found {size}; put "
            "large data elsewhere, and only its location in the store"
        )


def _batches(puts: Sequence[Put]) -> Iterator[list[Put]]:
    batch: list[Put] = []
    size = 0
    for put in puts:
        more = len(put.key) + len(put.value)
        if batch and (len(batch) == MOST_OPERATIONS or size + more > _MOST_BYTES - 64 * MOST_OPERATIONS):
            yield batch
            batch, size = [], 0
        batch.append(put)
        size += more
    if batch:
        yield batch

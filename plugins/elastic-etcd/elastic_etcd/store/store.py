"""What a torch store does, on etcd. The meaning of every operation is TCPStore's.

`reader.py` reads and waits, `writer.py` makes every write count once. `add` and `append` write on the condition that
nobody wrote in between, and else try again with what is there now. Who has lost twice waits a random time before the
next attempt, longer after every loss up to a bound that is the same for all: so those who came first are not worse off
than newcomers for long, and etcd is not flooded with attempts in vain. Measured: 128 at once need about 8 transactions
for an addition, where all who try at once would need 64.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import Clock, SystemClock, import_with
from elastic_etcd.client.errors import EtcdError, EtcdUnreachable
from elastic_etcd.client.values import Compare, Delete, Field, Get, KeyValue, Put, Transaction, absent, end_of
from elastic_etcd.store.reader import Reader
from elastic_etcd.store.writer import MOST_OPERATIONS, Deadline, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_etcd.client.client import EtcdClient

_dist: Any = import_with("torch.distributed", "TORCH_CPP_LOG_LEVEL", "FATAL")  # it prints no C++ traces then
_TIMEOUT = timedelta(seconds=300)
_MOST_BYTES = 1536 * 1024 - 4096  # in one request: 1.5 MiB, less room for what is around keys and values
_MOST_COUNTERS = 1024
_FIRST_WAIT, _LONGEST_WAIT = 0.004, 0.1  # seconds, after lost races

_COUNTER = re.compile(rb"\s{0,20}[-+]?[0-9]{1,20}\s{0,20}")
"""What counts as a number: digits of ASCII, as many as 64 bits have, with white space around it, as torch's stores."""

_ABSENT = KeyValue(b"", b"", 0, 0, 0, 0)
"""A key that does not exist."""

_open_stores: set[EtcdStore] = set()
"""torch's C++ side (PrefixStore, process groups) holds the C++ half of a store and lets Python forget the other half,
after which every call fails. So a store is remembered here until it is closed."""


class _ErrorsOfTorch:
    """Entered around every operation, whose errors leave it as torch's. A class, and made once: in a generator every
    operation would wait longer for this than for any other part of ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EtcdUnreachable):
            raise _dist.DistNetworkError(str(error)) from error
        if isinstance(error, EtcdError):
            raise _dist.DistStoreError(str(error)) from error


class EtcdStore(_dist.Store):  # type: ignore[misc]
    """A store with the meaning of torch's TCPStore, whose keys outlive any one machine. Thread-safe.

    Every write counts once, also when the answer to it is lost. While no member of the cluster answers, operations try
    again until the store's timeout. `wait` and `get` block on a watch. Where torch's own stores have several meanings,
    this one has TCPStore's; but `add` to a value that is no number raises ValueError, and an empty value counts as 0.

    Errors are torch's: DistStoreError when keys do not appear in time ("wait timeout after ...") or etcd refuses,
    DistNetworkError when no member answers; their cause is the client's. ValueError when keys and values are too much
    for one request of etcd (1.5 MiB).

    Args:
        etcd_client: a client of this process; it must not have come here by a fork.
        etcd_store_prefix: all keys of the store begin with it, slashes at its ends do not count. `k/` below it holds
            what users see, `w/` the markers of writers. Who uses one prefix shares a store; keys stay until somebody
            deletes them, or the lease ends.
        timeout: for keys to appear, and for etcd to answer; None: 300 s. `set_timeout` changes it.
        clock: for deadlines.
        lease: that all keys are attached to, so that they go with it, or a function that finds it and is called at the
            first write; 0 for none. Whoever granted it keeps it alive.
        owns_client: the client is closed with the store.
    """

    _errors = _ErrorsOfTorch()

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
        self._writer = Writer(etcd_client, base + b"w/", self._found_lease if lease else None, self._clock)
        # What our last `add` to a key left there is the best guess at what the next one finds: a guess that is right
        # saves the reading, one that is wrong costs no more than that.
        self._counters: dict[bytes, KeyValue] = {}
        self.set_timeout(timeout or _TIMEOUT)
        _open_stores.add(self)

    def get(self, key: str) -> bytes:
        """The value; waits for the key to appear."""
        at, deadline = self._at(key), self._deadline()
        with self._errors:
            found = self._reader.one(at, deadline) or self._reader.wait([at], deadline)[at]
            return found.value

    def set(self, key: str, value: str | bytes) -> None:
        """Write the value."""
        with self._errors:
            self._write_all([self._small_put(key, value)], self._deadline())

    def add(self, key: str, num: int) -> int:
        """Add to a counter, held as decimal text, that starts at 0. Its new value. `add(key, 0)` to a counter that
        exists is a read."""
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
        """Write `desired_value` if the value is `expected_value` (empty: or there is none). The value that stands
        afterwards; where there is none, and something was expected, that."""
        at, expected, desired = self._at(key), _as_bytes(expected_value), _as_bytes(desired_value)
        _expect_small(at, at, expected, desired)
        deadline, put = self._deadline(), Put(at, desired)
        # An empty value is expected as well as none: one is guessed, and the other tried then.
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
        """Whether all keys exist."""
        wanted = {self._at(key) for key in keys}
        with self._errors:
            return len(self._reader.those(sorted(wanted), self._deadline(), keys_only=True)[1]) == len(wanted)

    def delete_key(self, key: str) -> bool:
        """Remove the key; whether it was there."""
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
        """How many keys there are."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """All keys, oldest first."""
        begin, end, deadline = self._data, end_of(self._data), self._deadline()
        with self._errors:
            found = deadline.patiently(lambda: self._client.read(begin, end, keys_only=True))
        return [self._name(pair.key) for pair in found.values]

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value; a key that does not exist has an empty one."""
        added = _as_bytes(value)
        with self._errors:
            self._change(self._at(key), _ABSENT, lambda before: before + added, self._deadline())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values; waits for all keys to appear. Up to 120 keys are read at one moment, if their values are no more
        than 64 MiB."""
        wanted, deadline = [self._at(key) for key in keys], self._deadline()
        distinct = list(dict.fromkeys(wanted))
        with self._errors:
            while len(found := self._reader.those(distinct, deadline)[1]) < len(distinct):
                self._reader.wait(distinct, deadline, keys_only=True)
        return [found[key].value for key in wanted]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write all the values: at once, or not at all, if they are no more than 120 keys and 1.5 MiB. More are written
        in several such steps, which others may see between, and of which an error may leave some undone."""
        if len(keys) != len(values):
            raise ValueError(f"expected as many keys as values, found {len(keys)} and {len(values)}")
        pairs = dict(zip(keys, values, strict=True))
        puts, deadline = [self._small_put(key, value) for key, value in pairs.items()], self._deadline()
        with self._errors:
            for batch in _batches(puts):
                self._write_all(batch, deadline)

    def has_extended_api(self) -> bool:
        """Whether there are append, multi_get and multi_set."""
        return True

    def clone(self) -> EtcdStore:
        """Another store of the same keys, over the same client, which stays this one's."""
        return EtcdStore(self._client, self._prefix, self.timeout, self._clock, self._lease)

    def close(self) -> None:
        """Let waiting calls come back with an error, and delete the markers that make writes count once. The store is
        of no use then; its keys stay. Idempotent."""
        if self not in _open_stores:
            return
        _open_stores.discard(self)
        self._closed.set()
        self._reader.close()
        with contextlib.suppress(EtcdError):
            self._writer.forget()
        if self._owns_client:
            self._client.close()

    deleteKey = delete_key  # noqa: N815  # the names by which PrefixStore calls these
    getNumKeys = num_keys  # noqa: N815

    def _at(self, key: str) -> bytes:
        """Where the value of the user's key is in etcd."""
        return self._data + key.encode()

    def _name(self, at: bytes) -> str:
        """The user's key; the inverse of `_at`."""
        return at[len(self._data) :].decode(errors="replace")

    def _deadline(self, patience: timedelta | None = None) -> Deadline:
        return Deadline(self._clock, lambda: self.timeout if patience is None else patience, self._closed)

    def _found_lease(self, deadline: Deadline) -> int:
        if not isinstance(self._lease, int):
            self._lease = deadline.patiently(self._lease)
        return self._lease

    def _small_put(self, key: str, value: str | bytes) -> Put:
        put = Put(self._at(key), _as_bytes(value))
        _expect_small(put.key, put.value)
        return put

    def _write_all(self, puts: Sequence[Put], deadline: Deadline) -> None:
        while not self._writer.write(Transaction((), puts), deadline).succeeded:
            pass  # our marker was deleted by somebody who cleaned up; the next one is new

    def _change(self, at: bytes, known: KeyValue, change: Callable[[bytes], bytes], deadline: Deadline) -> KeyValue:
        """Replace the value by what `change` makes of it (of an empty one, if there is none). `known` is what the key
        was last known to hold."""
        for losses in itertools.count():
            value = change(known.value)
            _expect_small(at, at, value)
            condition, put = Compare(at, Field.MODIFIED, known.mod_revision), Put(at, value)
            outcome = self._writer.write(Transaction([condition], [put], [Get(at)]), deadline)
            if outcome.succeeded:
                return _ABSENT._replace(value=value, mod_revision=outcome.revision)
            known = outcome.ranges[0].first or _ABSENT
            if losses:  # the first one was a guess
                self._closed.wait(random.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(losses, 9))))
        raise AssertionError("counting has no end")


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _number(key: str, value: bytes) -> int:
    if value and not _COUNTER.fullmatch(value):
        raise ValueError(f"expected a number at the key {key!r}, to add to, found {value[:40]!r}")
    return _wrapped(int(value or b"0"))


def _wrapped(number: int) -> int:
    """In 64 bits, as torch's counters are."""
    return (number + 2**63) % 2**64 - 2**63


def _expect_small(*parts: bytes) -> None:
    """Raises ValueError when these keys and values are too much for one request."""
    size = sum(map(len, parts))
    if size > _MOST_BYTES:
        raise ValueError(
            f"expected keys and values of at most {_MOST_BYTES} bytes in one write, as etcd takes them, found {size}; "
            "keep large data elsewhere and its place here"
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

"""Reads a store's keys, and waits for missing keys with a watch instead of polling."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdClosed, EtcdError, EtcdTooLarge, EtcdUnreachable
from elastic_etcd.client.reflector import Reflector
from elastic_etcd.client.values import Get, Range, Transaction
from elastic_etcd.store.writer import MOST_OPERATIONS, Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.plugin import Clock
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.client.values import KeyValue

Found = dict[bytes, "KeyValue"]


class Reader:
    """Performs the reads from one store. Thread-safe. While no member answers, reads are retried until the deadline.
    `name` converts a key to the user's name for it. `closed` ends every wait."""

    def __init__(self, client: EtcdClient, name: Callable[[bytes], str], clock: Clock, closed: threading.Event) -> None:
        self._client = client
        self._name = name
        self._clock = clock
        self._closed = closed
        self._watches: set[_Missing] = set()
        self._changing = threading.Lock()

    def one(self, key: bytes, deadline: Deadline) -> KeyValue | None:
        """Return a key, or None if it does not exist. Raises EtcdError."""
        return deadline.patiently(partial(self._client.read, key)).first

    def those(self, keys: Sequence[bytes], deadline: Deadline, keys_only: bool = False) -> tuple[int, Found]:
        """Return a revision and the keys that exist. The keys were read at that revision or later. Up to 120 keys are
        read in a single step. More keys, or more than 64 MiB of values, take several reads. Raises EtcdError."""
        batches = [keys[start : start + MOST_OPERATIONS] for start in range(0, len(keys), MOST_OPERATIONS)]
        revision, found = 0, Found()
        while batches:
            batch = batches.pop(0)
            gets = [Get(key, keys_only=keys_only) for key in batch]
            try:
                committed = deadline.patiently(partial(self._client.transact, Transaction((), gets)))
            except EtcdTooLarge:
                if len(batch) < 2:
                    raise
                batches[:0] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
                continue
            revision = revision or committed.revision
            found |= {pair.key: pair for answer in committed.ranges for pair in answer.values}
        return revision, found

    def wait(self, keys: Sequence[bytes], deadline: Deadline, keys_only: bool = False) -> Found:
        """Block until each key has existed at some time since the call, and return the keys as they were then. Raises
        EtcdError if a key did not appear before the deadline."""
        distinct = list(dict.fromkeys(keys))
        revision, found = self.those(distinct, deadline, keys_only)
        missing = {key for key in distinct if key not in found}
        if missing:
            found |= self._watched(missing, revision, deadline)
        return found

    def close(self) -> None:
        """Make every blocked `wait` raise EtcdClosed, once `closed` is set. Idempotent."""
        with self._changing:
            watches = list(self._watches)
        for watch in watches:
            watch.close()

    def _watched(self, missing: set[bytes], revision: int, deadline: Deadline) -> Found:
        """Wait for all keys with a single watch, because every watch needs its own stream. The watch also receives any
        other keys that sort between them."""
        over = Deadline(self._clock, timedelta(0), self._closed)  # one attempt, whose error `wait_for` raises
        watch = _Missing(self._client, missing, lambda keys: self.those(keys, over), revision, self._clock)
        with self._changing:
            self._watches.add(watch)
        try:
            self._wait_on(watch, deadline)
        finally:
            with self._changing:
                self._watches.discard(watch)
            watch.close()
        return watch.found

    def _wait_on(self, watch: _Missing, deadline: Deadline) -> None:
        reason = ""
        while (left := deadline.left()) > 0 and not self._closed.is_set():
            try:
                watch.wait_for(lambda: not watch.missing, left)
            except EtcdUnreachable as error:
                reason = str(error)
            else:
                if not watch.missing:
                    return
        if self._closed.is_set():
            raise EtcdClosed("the store was closed during a wait for keys")
        waited = deadline.patience // timedelta(milliseconds=1)
        names = ", ".join(map(self._name, sorted(watch.missing)))
        outage = f" (etcd could not be reached: {reason})" if reason else ""
        raise EtcdError(f"wait timeout after {waited}ms, keys: {names}{outage}")


class _Missing(Reflector):
    """Missing keys of a store, none of which existed at `revision`. A key that has been found once is treated as found
    from then on. `read` is a function that returns a revision and the given keys that exist."""

    def __init__(
        self,
        client: EtcdClient,
        missing: set[bytes],
        read: Callable[[Sequence[bytes]], tuple[int, Found]],
        revision: int,
        clock: Clock,
    ) -> None:
        first, last = min(missing), max(missing)
        super().__init__(client, first, b"" if first == last else last + b"\x00", clock, revision)
        self.missing = set(missing)
        self.found: Found = {}
        self._read_those = read

    def _list(self) -> Range:
        revision, found = self._read_those(sorted(self.missing))
        return Range(revision, tuple(found.values()))

    def _replace(self, found: Range) -> None:
        for pair in found.values:
            self._apply(pair, deleted=False)

    def _apply(self, pair: KeyValue, deleted: bool) -> None:
        if not deleted and pair.key in self.missing:
            self.missing.discard(pair.key)
            self.found[pair.key] = pair

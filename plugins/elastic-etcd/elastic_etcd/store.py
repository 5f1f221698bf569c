"""`EtcdStore`: a `torch.distributed.Store` that lives in etcd. Importing this imports torch."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from elastic_core.clock import Clock, SystemClock
from elastic_etcd.client.errors import EtcdError, EtcdUnreachable
from elastic_etcd.store_deadline import Deadline
from elastic_etcd.store_keys import StoreKeys
from elastic_etcd.store_operations import Operations
from elastic_etcd.store_reader import KeysMissing, Reader
from elastic_etcd.store_writer import Writer
from elastic_etcd.torch_import import distributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_etcd.client.interface import Client

_dist: Any = distributed()
_TIMEOUT = timedelta(seconds=300)

_open_stores: set[EtcdStore] = set()
"""torch's C++ side (PrefixStore, process groups) holds the C++ half of a store and lets Python forget the other half,
after which every call fails. So a store is remembered here until it is closed."""


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


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


class _ErrorsOfWaiting(_ErrorsOfTorch):
    """The same around an operation that waits for keys.

    Args:
        keys: names them for users.
        patience: how long it waits.
    """

    def __init__(self, keys: StoreKeys, patience: timedelta) -> None:
        self._keys = keys
        self._patience = patience

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeysMissing):
            raise _dist.DistStoreError(self._missing(error)) from error
        super().__exit__(kind, error, trace)

    def _missing(self, error: KeysMissing) -> str:
        waited = self._patience // timedelta(milliseconds=1)
        names = ", ".join(self._keys.name(key) for key in error.keys)
        outage = f" (etcd could not be reached: {error.reason})" if error.reason else ""
        return f"wait timeout after {waited}ms, keys: {names}{outage}"


class EtcdStore(_dist.Store):  # type: ignore[misc]
    """A store with the meaning of torch's TCPStore, whose keys outlive any one machine. Thread-safe.

    Every write counts once, also when the answer to it is lost. While no member of the cluster answers, operations try
    again until the store's timeout. `wait` and `get` block on a watch. Where torch's own stores have several meanings,
    this one has TCPStore's; but `add` to a value that is no number raises ValueError, and an empty value counts as 0.

    Errors are torch's: DistStoreError when keys do not appear in time ("wait timeout after ...") or etcd refuses,
    DistNetworkError when no member answers; their cause is the client's. ValueError when keys and values are too much
    for one request of etcd (1.5 MiB).

    Args:
        client: a client of this process; it must not have come here by a fork.
        prefix: all keys of the store begin with it. Who uses one prefix shares a store; keys stay until somebody
            deletes them, or the lease ends.
        timeout: for keys to appear, and for etcd to answer. `set_timeout` changes it.
        clock: for deadlines.
        lease: that all keys are attached to, so that they go with it; 0 for none. Whoever granted it keeps it alive.
        owns_client: the client is closed with the store.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        timeout: timedelta = _TIMEOUT,
        clock: Clock | None = None,
        lease: int = 0,
        owns_client: bool = False,
    ) -> None:
        super().__init__()
        self._client = client
        self._prefix = prefix
        self._clock: Clock = clock or SystemClock()
        self._lease = lease
        self._owns_client = owns_client
        self._keys = StoreKeys(prefix)
        self._reader = Reader(client, self._clock)
        self._writer = Writer(client, self._keys.writers, lease, self._clock)
        self._errors = _ErrorsOfTorch()
        self._operations = Operations(self._keys, self._reader, self._writer, lease)
        self.set_timeout(timeout)
        _open_stores.add(self)

    def get(self, key: str) -> bytes:
        """The value; waits for the key to appear."""
        patience = self.timeout
        with _ErrorsOfWaiting(self._keys, patience):
            return self._operations.get(key, self._until(patience))

    def set(self, key: str, value: str | bytes) -> None:
        """Write the value."""
        with self._errors:
            self._operations.set(key, _as_bytes(value), self._deadline())

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, held as decimal text, that starts at 0. Its new value. `add(key, 0)` to a counter that
        exists is a read."""
        with self._errors:
            return self._operations.add(key, amount, self._deadline())

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Write `desired_value` if the value is `expected_value` (empty: or there is none). The value that stands
        afterwards; where there is none, and something was expected, that."""
        expected, desired = _as_bytes(expected_value), _as_bytes(desired_value)
        with self._errors:
            return self._operations.compare_set(key, expected, desired, self._deadline())

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys exist."""
        patience = self.timeout if timeout is None else timeout
        with _ErrorsOfWaiting(self._keys, patience):
            self._operations.wait(keys, self._until(patience))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist."""
        with self._errors:
            return self._operations.check(keys, self._deadline())

    def delete_key(self, key: str) -> bool:
        """Remove the key; whether it was there."""
        with self._errors:
            return self._operations.delete_key(key, self._deadline())

    def num_keys(self) -> int:
        """How many keys there are."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """All keys, oldest first."""
        with self._errors:
            return self._operations.list_keys(self._deadline())

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value; a key that does not exist has an empty one."""
        with self._errors:
            self._operations.append(key, _as_bytes(value), self._deadline())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values; waits for all keys to appear. Up to 120 keys are read at one moment."""
        patience = self.timeout
        with _ErrorsOfWaiting(self._keys, patience):
            return self._operations.multi_get(keys, self._until(patience))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write all the values: at once, or not at all, if they are no more than 120 keys and 1.5 MiB. More are written
        in several such steps, which others may see between, and of which an error may leave some undone."""
        if len(keys) != len(values):
            raise ValueError(f"expected as many keys as values, found {len(keys)} and {len(values)}")
        pairs = {key: _as_bytes(value) for key, value in zip(keys, values, strict=True)}
        with self._errors:
            self._operations.multi_set(pairs, self._deadline())

    def has_extended_api(self) -> bool:
        """Whether there are append, multi_get and multi_set."""
        return True

    def clone(self) -> EtcdStore:
        """Another store of the same keys, over the same client, which stays this one's."""
        return EtcdStore(self._client, self._prefix, self.timeout, self._clock, self._lease)

    def close(self) -> None:
        """Let waiting calls come back with an error, and delete the notes that make writes count once. The store is of
        no use then; its keys stay. Idempotent."""
        if self not in _open_stores:
            return
        _open_stores.discard(self)
        self._reader.close()
        with contextlib.suppress(EtcdError):
            self._writer.forget()
        if self._owns_client:
            self._client.close()

    deleteKey = delete_key  # noqa: N815  # the names by which PrefixStore calls these
    getNumKeys = num_keys  # noqa: N815

    def _deadline(self) -> Deadline:
        return Deadline(self._clock.now(), lambda: self.timeout.total_seconds())

    def _until(self, patience: timedelta) -> Deadline:
        return Deadline(self._clock.now(), patience.total_seconds)


__all__ = ["EtcdStore"]

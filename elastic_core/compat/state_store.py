"""A store on top of a rendezvous backend that has only `get_state` and `set_state`. A single state contains all the
store's keys.

The members of a round share one such store. The job's nodes share another one, on which a `StoreBackend` is based. With
many nodes, a backend that stores entries separately is much more efficient.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from elastic_core.clock import Backoff, SystemClock, later, swapped
from elastic_core.errors import RendezvousStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.store_connection import StoreConnection, close_client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import RendezvousBackend

    Values = dict[str, bytes]

_VERSION = 1
_TIMEOUT = timedelta(seconds=300)
_MOST_REFUSALS = 1000  # each refusal means that another client's write has succeeded
_PAUSES = Backoff(first=0.02, longest=1.0, factor=1.5)


class StateStore:
    """An `interfaces.backend.Store` that keeps all its keys in one state of `backend`. Each operation reads or writes
    the whole state, so the store is meant for the few small values of a rendezvous, not for data. Thread-safe.

    While the store waits for a key from another process, it polls the state. The pauses between polls grow from 0.02 s
    to 1 s.

    Args:
        backend: a client for a state that is written only through this store, for example because the client has its
            own job id. If the backend's `set_state` does not return the stored state, concurrent `add` calls may count
            twice.
        timeout: how long `get` and `wait` wait for a key.

    Every method raises the backend's RendezvousConnectionError and RendezvousStateError. `get` and `wait` raise
    TimeoutError if a key does not appear in time.
    """

    def __init__(self, backend: RendezvousBackend, timeout: timedelta = _TIMEOUT, clock: Clock | None = None) -> None:
        self._backend = backend
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._is_ours = False

    def get(self, key: str) -> bytes:
        return self._awaited([key], self._timeout)[key]

    def set(self, key: str, value: str | bytes) -> None:
        self._change(lambda values: {**values, key: _as_bytes(value)})

    def add(self, key: str, amount: int) -> int:
        def change(values: Values) -> Values:
            if key in values and not amount:
                return values
            return {**values, key: str(int(values.get(key) or b"0") + amount).encode()}

        return int(self._change(change)[key])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        def change(values: Values) -> Values:
            meets = values.get(key, b"") == _as_bytes(expected)
            return {**values, key: _as_bytes(desired)} if meets else values

        return self._change(change).get(key, _as_bytes(expected))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._awaited(keys, self._timeout if timeout is None else timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return not _missing(self._values(), keys)

    def delete_key(self, key: str) -> bool:
        was_there = False

        def change(values: Values) -> Values:
            nonlocal was_there
            was_there = key in values
            return {name: value for name, value in values.items() if name != key} if was_there else values

        self._change(change)
        return was_there

    def num_keys(self) -> int:
        return len(self._values())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of all these keys. Waits for the keys as `get` does."""
        values = self._awaited(keys, self._timeout)
        return [values[key] for key in keys]

    def close(self) -> None:
        """Close the backend if it has a `close` method."""
        close_client(self._backend)

    def _values(self) -> Values:
        with self._changed:
            return self._read()[0]

    def _read(self, replaces: bool = False) -> tuple[Values, object]:
        """Return the values and the state's token. Raises RendezvousStateError if something else has overwritten the
        store's state. If the caller is about to write (`replaces`), the store is also reset."""
        found = self._backend.get_state()
        try:
            values = {} if found is None else _decoded(found[0])
        except RendezvousStateError as error:
            if self._is_ours and replaces and found is not None:
                get_logger().warning("store overwritten", reason=str(error))
                self._backend.set_state(_encoded({}), found[1])
            raise
        self._is_ours = True
        return values, None if found is None else found[1]

    def _awaited(self, keys: Sequence[str], timeout: timedelta) -> Values:
        until, looks = later(self._clock.now(), timeout.total_seconds()), 0
        while missing := _missing(values := self._values(), keys):
            left = until - self._clock.now()
            if left <= 0:
                raise TimeoutError(f"the keys {missing} were not set within {timeout.total_seconds():g} s")
            looks += 1
            with self._changed:
                self._changed.wait(min(_PAUSES.pause(looks), left))
        return values

    def _change(self, change: Callable[[Values], Values]) -> Values:
        def attempt() -> Values | None:
            values, token = self._read(replaces=True)
            changed = change(values)
            done = changed is values or self._put(changed, token)
            return changed if done else None

        with self._changed:
            changed = swapped(attempt, _MOST_REFUSALS, f"the state of the backend {self._backend.name!r}")
            self._changed.notify_all()
            return changed

    def _put(self, values: Values, token: object) -> bool:
        data = _encoded(values)
        answer = self._backend.set_state(data, token)
        if answer is not None:
            return answer[2]
        found = self._backend.get_state()  # this backend's `set_state` returns nothing
        return found is not None and found[0] == data


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _missing(values: Values, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if key not in values]


def _encoded(values: Values) -> bytes:
    """Encode the values with a random serial, which distinguishes two writes of the same values."""
    serial = secrets.token_hex(8)
    shown = {key: base64.b64encode(value).decode() for key, value in values.items()}
    return json.dumps({"version": _VERSION, "serial": serial, "values": shown}, separators=(",", ":")).encode("ascii")


def _decoded(data: bytes) -> Values:
    try:
        document = json.loads(data)
        if document["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r}")
        return {str(key): base64.b64decode(value, validate=True) for key, value in document["values"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RendezvousStateError(
            f"expected the values of a store of version {_VERSION}, found {data[:80]!r} ({error}); make sure that no "
            "other program uses the same endpoint and --rdzv-id"
        ) from error


class StateConnector:
    """Gives the same store to all callers. The backend, not the store, limits how long an operation may take."""

    hosts = False
    grace: Duration = 0.0

    def __init__(self, backend: RendezvousBackend, clock: Clock) -> None:
        self.where = backend.name
        self._store = StateStore(backend, clock=clock)
        self._closed = False

    def connect(self, aside: bool = False) -> StoreConnection:
        return _SharedConnection(self._store, self.where)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._store.close()


class _SharedConnection(StoreConnection):
    def fetch(self, key: str, timeout: Duration, closed: threading.Event) -> bytes | None:
        """Poll for the key with increasing pauses, because each poll reads the whole state."""
        return self.asked_for(key, timeout, closed, _PAUSES)

    def release(self) -> None:
        """Do nothing, because the connector closes the shared store."""

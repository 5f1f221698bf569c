"""An in-memory store for one process, with the semantics of torch's stores but without torch."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class MemoryStore:
    """An in-memory `interfaces.store.Store`. Thread-safe. As with torch's stores, `compare_set` returns `expected` if
    the key is missing and `expected` is not empty, and `add` treats an empty value as 0.

    Args:
        timeout: how long `get` and `wait` wait for a key.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=300)) -> None:
        self._timeout = timeout
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def get(self, key: str) -> bytes:
        """Return the value. Raises TimeoutError if the key does not appear in time."""
        with self._changed:
            self._await_keys([key], self._timeout)
            return self._values[key]

    def set(self, key: str, value: str | bytes) -> None:
        with self._changed:
            self._put(key, _as_bytes(value))

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            value = int(self._values.get(key) or b"0") + amount
            self._put(key, str(value).encode())
            return value

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        with self._changed:
            if self._values.get(key, b"") == _as_bytes(expected):
                self._put(key, _as_bytes(desired))
            return self._values.get(key, _as_bytes(expected))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for the keys. Raises TimeoutError if one does not appear in time."""
        with self._changed:
            self._await_keys(keys, self._timeout if timeout is None else timeout)

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        with self._changed:
            return len(self._values)

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()

    def _await_keys(self, keys: Sequence[str], timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        if not self._changed.wait_for(lambda: all(key in self._values for key in keys), seconds):
            missing = [key for key in keys if key not in self._values]
            raise TimeoutError(f"the keys {missing} were not set within {seconds:g} s")

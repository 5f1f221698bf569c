"""A key-value store in a SQLite file on a shared disk. Its methods behave like those of torch's stores."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

_TABLE = "CREATE TABLE IF NOT EXISTS elastic (key TEXT PRIMARY KEY, value BLOB NOT NULL)"


class SqliteStore:
    def __init__(self, path: str, timeout: timedelta = timedelta(minutes=5), lock_timeout: float = 5.0) -> None:
        self._timeout = timeout
        self._file = sqlite3.connect(path, lock_timeout, isolation_level=None, check_same_thread=False)
        self._file.execute(_TABLE)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(self._read(key))

    def set(self, key: str, value: str | bytes) -> None:
        self._write(key, lambda _: value)

    def add(self, key: str, amount: int) -> int:
        return int(self._write(key, lambda value: b"%d" % (int(value or 0) + amount)))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        old = expected.encode() if isinstance(expected, str) else expected
        stored = self._write(key, lambda value: desired if (value or b"") == old else value)
        return old if stored is None else bytes(stored)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        until = time.monotonic() + (timeout or self._timeout).total_seconds()
        while not self.check(keys):  # SQLite does not report writes of other machines
            if time.monotonic() >= until:
                raise TimeoutError(f"not all of the keys {list(keys)} were set in time")
            time.sleep(0.02)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._read(key) is not None for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._file.execute("DELETE FROM elastic WHERE key = ?", (key,)).rowcount > 0

    def num_keys(self) -> int:
        return int(self._file.execute("SELECT COUNT(*) FROM elastic").fetchone()[0])

    def _read(self, key: str) -> Any:
        return (self._file.execute("SELECT value FROM elastic WHERE key = ?", (key,)).fetchone() or [None])[0]

    def _write(self, key: str, change: Callable[[Any], Any]) -> Any:
        with self._file:  # IMMEDIATE locks before the read, so that no other write can follow it
            self._file.execute("BEGIN IMMEDIATE")
            before = self._read(key)
            after = change(before)
            if after is not before:
                after = after.encode() if isinstance(after, str) else after
                self._file.execute("INSERT OR REPLACE INTO elastic VALUES (?, ?)", (key, after))
        return after

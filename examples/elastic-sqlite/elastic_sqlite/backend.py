"""The state of a job as one row of a table, written under SQLite's lock."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.backend import RendezvousBackend, Token

_TABLE = "CREATE TABLE IF NOT EXISTS elastic_state (job TEXT PRIMARY KEY, token TEXT NOT NULL, state BLOB NOT NULL)"
_IS_THERE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'elastic_state'"
_READ = "SELECT state, token FROM elastic_state WHERE job = ?"
_WRITE = "INSERT OR REPLACE INTO elastic_state (job, token, state) VALUES (?, ?, ?)"


class SqliteBackend(RendezvousBackend):
    """A place for the state of one job.

    Args:
        path: the file, which is made by the first write.
        job: jobs of different names do not see each other in one file.
        lock_timeout: seconds to wait for others to let go of the file.

    Raises, from every method:
        RendezvousConnectionError: the file cannot be opened, or is locked for too long. The call may be repeated.
        RendezvousStateError: the file is no database, or holds something else in our table.
    """

    def __init__(self, path: Path, job: str, lock_timeout: float = 5.0) -> None:
        self._path = path
        self._job = job
        self._lock_timeout = lock_timeout

    @property
    def name(self) -> str:
        return "sqlite"

    def get_state(self) -> tuple[bytes, Token] | None:
        if self._path.parent.is_dir() and not self._path.exists():
            return None  # nobody was here yet; who only looks leaves no file behind
        with self._database() as database:
            return self._standing(database)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        with self._database() as database:
            # IMMEDIATE takes the lock before the reading: nobody can write between our look and our write.
            database.execute("BEGIN IMMEDIATE")
            standing = self._standing(database)
            if token != (None if standing is None else standing[1]):
                return None if standing is None else (*standing, False)
            # Not a count: a file that was deleted and made anew would give the same numbers out again.
            fresh = secrets.token_hex(8)
            database.execute(_TABLE)
            database.execute(_WRITE, (self._job, fresh, state))
            database.execute("COMMIT")
            return state, fresh, True

    def _standing(self, database: sqlite3.Connection) -> tuple[bytes, str] | None:
        if database.execute(_IS_THERE).fetchone() is None:
            return None
        row = database.execute(_READ, (self._job,)).fetchone()
        if row is None:
            return None
        state, token = row
        if not isinstance(state, bytes) or not isinstance(token, str):
            raise RendezvousStateError(
                f"expected a blob and a token for the job {self._job!r} in {self._path}, found {row!r:.80}; no other "
                "program may write to the table elastic_state"
            )
        return state, token

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection for one call: what was not committed is rolled back. None is kept, so that the threads of the
        core need not share one, and a file that was replaced is noticed. The journal is a file beside it, SQLite's
        default: WAL needs memory that all share, which different machines do not have."""
        try:
            with contextlib.closing(
                sqlite3.connect(self._path, timeout=self._lock_timeout, isolation_level=None)
            ) as database:
                yield database
        except sqlite3.OperationalError as error:
            raise RendezvousConnectionError(
                f"expected to reach the rendezvous file {self._path} within {self._lock_timeout:g} s, found: {error}"
            ) from error
        except sqlite3.DatabaseError as error:
            raise RendezvousStateError(
                f"expected a SQLite database in {self._path}, found: {error}; choose another --rdzv-endpoint, or move "
                "the file away"
            ) from error

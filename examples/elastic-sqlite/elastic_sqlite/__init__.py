"""A store in a SQLite file on a disk that all nodes share."""

from elastic_sqlite.store import SqliteStore

__all__ = ["SqliteStore"]

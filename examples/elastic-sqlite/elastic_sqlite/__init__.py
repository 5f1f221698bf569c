"""Nodes meet in a SQLite file on a disk that all of them share."""

from elastic_sqlite.store import SqliteStore

__all__ = ["SqliteStore"]

"""Nodes meet in a SQLite file on a disk that all of them share."""

from elastic_sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]

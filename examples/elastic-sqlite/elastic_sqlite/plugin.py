"""Registers the store `sqlite`, and with it the rendezvous backend of the same name."""

from __future__ import annotations

from pathlib import Path

from elastic_core.plugin import ConfigurationError, Context, Option, Problem, StoreRecord, hookimpl
from elastic_sqlite.store import SqliteStore

_OPTIONS = (
    Option("path", str, "", "the file, on a disk that all nodes share"),
    Option("lock_timeout", float, 5.0, "how long to wait for a lock on the file", "seconds", above=0),
)


def create(context: Context) -> SqliteStore:
    options = context.options
    path = Path(options["path"]).expanduser()
    if not options["path"] or not path.parent.is_dir() or path.is_dir():
        expected = "expected the path of a file, in a folder on a disk that all nodes share"
        raise ConfigurationError(Problem("--rdzv-endpoint", f"{expected}, found {options['path']!r}"))
    return SqliteStore(str(path), lock_timeout=options["lock_timeout"])


@hookimpl
def elastic_stores() -> list[StoreRecord]:
    return [StoreRecord("sqlite", "a SQLite file on a shared disk", create, _OPTIONS)]

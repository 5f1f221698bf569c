"""What the plugin registers."""

from __future__ import annotations

import os
from pathlib import Path

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks import Option, RendezvousBackendRecord, hookimpl
from elastic_core.rendezvous import (
    OPTIONS,
    RendezvousBackend,
    RendezvousHandler,
    RendezvousParameters,
    StateStore,
    create_handler,
)
from elastic_sqlite.backend import SqliteBackend

_LOCK_TIMEOUT = Option("lock_timeout", float, 5.0, "for other nodes to let go of the file", "seconds")


def handler(params: RendezvousParameters) -> RendezvousHandler:
    """One node of a job. Raises ConfigurationError."""
    store = StateStore(_backend(params, "store"))
    return create_handler(store, _backend(params, "state"), params)


def open_backend(params: RendezvousParameters) -> RendezvousBackend:
    """The state alone, for `elastic status` and `elastic drain`. Raises ConfigurationError."""
    return _backend(params, "state")


def _backend(params: RendezvousParameters, part: str) -> SqliteBackend:
    """`part`: a job has two rows of its own, its state and the members' store."""
    lock_timeout = float(params.get("lock_timeout", _LOCK_TIMEOUT.default))
    if not lock_timeout > 0:
        raise ConfigurationError(
            Problem("--rdzv-conf: lock_timeout", f"expected seconds above 0, found {lock_timeout:g}")
        )
    return SqliteBackend(_path(params.endpoint), f"{part}/{params.run_id}", lock_timeout)


def _path(endpoint: str) -> Path:
    path = Path(endpoint).expanduser()
    if not endpoint:
        raise _no_place("found none")
    if not path.parent.is_dir():
        raise _no_place(f"found {endpoint!r}, whose folder does not exist")
    if path.exists() and not path.is_file():
        raise _no_place(f"found {endpoint!r}, which is no file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise _no_place(f"found {endpoint!r}, which cannot be written")
    return path


def _no_place(found: str) -> ConfigurationError:
    expected = "expected the path of a file on a disk that all nodes share"
    return ConfigurationError(Problem("--rdzv-endpoint", f"{expected}, {found}"))


@hookimpl
def elastic_rendezvous_backends() -> list[RendezvousBackendRecord]:
    return [
        RendezvousBackendRecord(
            "sqlite",
            "nodes meet in a SQLite file on a disk that all share",
            handler,
            (*OPTIONS, _LOCK_TIMEOUT),
            open_backend=open_backend,
        )
    ]

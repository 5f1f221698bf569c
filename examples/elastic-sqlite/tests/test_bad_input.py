"""Invalid input from users and other programs."""

import contextlib
import sqlite3

import pytest
from elastic_sqlite import SqliteStore
from elastic_testing import installed_backend, installed_store

from elastic_core.errors import ConfigurationError, RendezvousConnectionError, RendezvousStateError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "rendezvous.db")


@pytest.mark.parametrize("place", ["", "missing/rendezvous.db", "."])
def test_invalid_endpoint_is_reported(tmp_path, place):
    endpoint = str(tmp_path / place) if place else ""
    with pytest.raises(ConfigurationError, match=r"--rdzv-endpoint: expected the path of a file, .*, found"):
        installed_store("sqlite", path=endpoint)
    with pytest.raises(ConfigurationError, match=r"--rdzv-endpoint: expected the path of a file, .*, found"):
        installed_backend("sqlite", endpoint, "job").get_state()


def test_locked_file_is_named(path):
    backend = installed_backend("sqlite", path, "job", lock_timeout=0.05)
    _, token, _ = backend.set_state(b"1")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for call in (backend.get_state, lambda: backend.set_state(b"2", token)):
            with pytest.raises(RendezvousConnectionError, match=r"rendezvous\.db failed: database is locked"):
                call()
    assert backend.get_state() == (b"1", token)


def test_database_with_other_tables_is_used(path):
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    assert installed_backend("sqlite", path, "job").set_state(b"1")[2]


def test_foreign_state_is_named(path):
    installed_backend("sqlite", path, "job").set_state(b"1")
    store = SqliteStore(path)
    store.set(f"elastic/job/{store.get('elastic/job/id').decode()}/s/1", "words")
    with pytest.raises(RendezvousStateError, match=r"expected a state written by elastic-core .*, found b'words'"):
        installed_backend("sqlite", path, "job").get_state()


def test_file_that_is_not_a_database_is_named(path):
    with open(path, "w") as file:
        file.write("Dear diary, " * 100)
    with pytest.raises(RendezvousConnectionError, match=r"rendezvous\.db failed: file is not a database"):
        installed_backend("sqlite", path, "job").get_state()

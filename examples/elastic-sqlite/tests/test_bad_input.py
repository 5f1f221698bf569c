"""What users and other programs may get wrong."""

import contextlib
import os
import sqlite3

import pytest
from elastic_sqlite import SqliteBackend
from elastic_sqlite.plugin import elastic_rendezvous_backends

from elastic_core.errors import ConfigurationError, RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous import RendezvousParameters

(RECORD,) = elastic_rendezvous_backends()


def parameters(endpoint, **options):
    return RendezvousParameters("sqlite", str(endpoint), "job", 1, 2, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rendezvous.db"


@pytest.mark.parametrize(
    "endpoint, found",
    [
        ("", "found none"),
        ("missing/rendezvous.db", "whose folder does not exist"),
        ("folder", "which is no file"),
        ("read-only.db", "which cannot be written"),
    ],
)
def test_a_place_where_nobody_can_meet(tmp_path, endpoint, found):
    (tmp_path / "folder").mkdir()
    (tmp_path / "read-only.db").touch(0o400)
    if endpoint == "read-only.db" and os.access(tmp_path / endpoint, os.W_OK):
        pytest.skip("this user may write everything")
    for make in (RECORD.factory, RECORD.open_backend):
        with pytest.raises(ConfigurationError, match=f"--rdzv-endpoint: expected the path of a file .*, .*{found}"):
            make(parameters(tmp_path / endpoint if endpoint else ""))


def test_a_lock_timeout_that_cannot_be(path):
    with pytest.raises(ConfigurationError, match="lock_timeout: expected seconds above 0, found -1"):
        RECORD.factory(parameters(path, lock_timeout=-1.0))


def test_who_only_looks_leaves_nothing_behind(path):
    assert RECORD.open_backend(parameters(path)).get_state() is None
    assert not path.exists()


def test_a_file_that_somebody_holds_is_named(path):
    SqliteBackend(path, "job").set_state(b"1")
    impatient = SqliteBackend(path, "job", lock_timeout=0.05)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for call in (impatient.get_state, lambda: impatient.set_state(b"2")):
            with pytest.raises(RendezvousConnectionError, match=r"rendezvous\.db within 0\.05 s, found: .*locked"):
                call()
    assert SqliteBackend(path, "job").get_state()[0] == b"1"


def test_a_database_of_somebody_else_is_shared(path):
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    assert SqliteBackend(path, "job").get_state() is None
    assert SqliteBackend(path, "job").set_state(b"1")[2]


def test_a_row_of_somebody_else_is_named(path):
    SqliteBackend(path, "job").set_state(b"1")
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE elastic_state SET state = 'words'")
    with pytest.raises(RendezvousStateError, match=r"no other program may write to the table elastic_state"):
        SqliteBackend(path, "job").get_state()


def test_a_file_that_was_deleted_does_not_take_old_tokens(path):
    backend = SqliteBackend(path, "job")
    _, old, _ = backend.set_state(b"1")
    path.unlink()
    assert backend.set_state(b"2", old) is None
    _, fresh, written = backend.set_state(b"2")
    assert written
    assert fresh != old

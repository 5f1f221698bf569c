"""Nodes are processes, and locks of files are between processes: the contract's clients are all in one."""

import signal
import subprocess
import sys

import pytest
from elastic_sqlite import SqliteBackend

LIMIT_S = 60
PROCESSES, TIMES = 3, 100

COUNT = """
import sys
from pathlib import Path
from elastic_sqlite import SqliteBackend

backend, times = SqliteBackend(Path(sys.argv[1]), "job", lock_timeout=60.0), int(sys.argv[2])
while times:
    state, token = backend.get_state() or (b"0", None)
    answer = backend.set_state(b"%d" % (int(state) + 1), token)
    times -= answer is not None and answer[2]
"""

STOP_HALFWAY = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")  # so that it writes to the file before it commits
database.execute("BEGIN IMMEDIATE")
database.execute("UPDATE elastic_state SET token = 'halfway', state = zeroblob(1000000)")
print("halfway", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rendezvous.db"


def test_processes_that_write_at_the_same_time_lose_nothing(path):
    command = [sys.executable, "-c", COUNT, str(path), str(TIMES)]
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    try:
        assert [process.wait(LIMIT_S) for process in running] == [0] * PROCESSES
    finally:
        for process in running:
            process.kill()
    assert SqliteBackend(path, "job").get_state()[0] == b"%d" % (PROCESSES * TIMES)


def test_a_writer_that_is_killed_halfway_has_written_nothing(path):
    backend = SqliteBackend(path, "job")
    _, token, _ = backend.set_state(b"1")
    with subprocess.Popen(
        [sys.executable, "-c", STOP_HALFWAY, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        try:
            assert writer.stdout.readline() == b"halfway\n"
        finally:
            writer.send_signal(signal.SIGKILL)
    assert path.with_name(path.name + "-journal").exists()
    assert backend.get_state() == (b"1", token)
    assert backend.set_state(b"2", token)[2]

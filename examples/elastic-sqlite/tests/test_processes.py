"""File locks between processes. The contract's clients all run in one process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_sqlite import SqliteStore

LIMIT_S = 60
PROCESSES, TIMES = 3, 100

COUNT = """
import sys
from elastic_sqlite import SqliteStore

store = SqliteStore(sys.argv[1], lock_timeout=60.0)
for _ in range(int(sys.argv[2])):
    store.add("count", 1)
"""

STOP_HALFWAY = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")  # so that SQLite writes to the file before the commit
database.execute("BEGIN IMMEDIATE")
database.execute("UPDATE elastic SET value = zeroblob(1000000)")
print("halfway", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "rendezvous.db")


def test_concurrent_processes_lose_no_write(path):
    command = [sys.executable, "-c", COUNT, path, str(TIMES)]
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    try:
        assert [process.wait(LIMIT_S) for process in running] == [0] * PROCESSES
    finally:
        for process in running:
            process.kill()
    assert SqliteStore(path).get("count") == b"%d" % (PROCESSES * TIMES)


def test_killed_writer_has_written_nothing(path):
    store = SqliteStore(path)
    store.set("key", "before")
    with subprocess.Popen(
        [sys.executable, "-c", STOP_HALFWAY, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        try:
            assert writer.stdout.readline() == b"halfway\n"
        finally:
            writer.send_signal(signal.SIGKILL)
    assert Path(path + "-journal").exists()
    assert store.get("key") == b"before"
    assert store.compare_set("key", "before", "after") == b"after"

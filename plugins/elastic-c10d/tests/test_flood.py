"""Whoever reaches a store can write to it; what they write does not fill the memory of its host."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from elastic_c10d.server import MOST_BYTES, FloodWatch
from elastic_c10d.torch_store import distributed

from elastic_core.testing import eventually

MIB = 1 << 20


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def client(port):
    return distributed().TCPStore("127.0.0.1", port, None, False, timedelta(seconds=30), wait_for_workers=False)


@pytest.fixture
def served(free_port, tmp_path):
    """A store of `elastic serve`: its process, its port, the file with what it says."""
    port, said = free_port(), tmp_path / "said"
    command = [sys.executable, "-m", "elastic_core", "serve", f"--rdzv-endpoint=127.0.0.1:{port}"]
    with said.open("w") as file, subprocess.Popen(command, stderr=file) as process:
        eventually(lambda: "store served" in said.read_text(), timeout=60)
        yield process, port, said
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_store_that_is_flooded_begins_anew_and_its_memory_is_free(served):
    process, port, said = served
    before, large = resident(process.pid), "x" * (8 * MIB)  # torch takes no more at once
    for flood in (1, 2):
        store = client(port)
        store.set("kept", "no")
        with pytest.raises(RuntimeError):  # cut off
            for number in range(1000):
                store.set(f"flood/{number}", large)
        eventually(lambda flood=flood: said.read_text().count("store flooded") == flood, timeout=30)
        eventually(lambda: resident(process.pid) < before + MOST_BYTES / 2, timeout=30)
        assert re.search(r"heaviest=\"127\.0\.0\.1:\d+ sent \d{3,} MiB", said.read_text())
    assert not client(port).check(["kept"])


def test_small_writes_over_a_long_time_count_as_much(served):
    process, port, said = served
    store, value = client(port), "x" * 20_000
    with pytest.raises(RuntimeError):
        for number in range(100_000):
            store.set(f"flood/{number}", value)
    eventually(lambda: "store flooded" in said.read_text(), timeout=30)
    eventually(lambda: resident(process.pid) < MOST_BYTES, timeout=30)


def test_if_something_else_has_grown_the_store_is_ended_once(free_port):
    sizes, renewed = iter([100, 100, 100, 800, 800, 900]), []

    def renew():
        renewed.append(1)
        return True

    watch = FloodWatch(free_port(), renew, most=500, size=lambda: next(sizes, 900), every=0.01)
    eventually(lambda: renewed)
    eventually(lambda: "store-flood-watch" not in [thread.name for thread in threading.enumerate()])
    watch.stop()
    assert renewed == [1]

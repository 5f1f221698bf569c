"""Any client can write to a store, but cannot fill its host's memory."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from elastic_c10d.server import MOST_BYTES, OverloadWatch
from elastic_c10d.torch_store import distributed
from elastic_testing import eventually

MIB = 1 << 20


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def client(port):
    return distributed().TCPStore("127.0.0.1", port, None, False, timedelta(seconds=30), wait_for_workers=False)


@pytest.fixture
def served(free_port, tmp_path):
    """A store of `elastic serve`: its process, its port and its log file."""
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "elastic_core", "serve", f"--rdzv-endpoint=127.0.0.1:{port}"]
    with log.open("w") as file, subprocess.Popen(command, stderr=file) as process:
        eventually(lambda: "store served" in log.read_text(), timeout=60)
        yield process, port, log
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_flooded_store_is_replaced_and_its_memory_freed(served):
    process, port, log = served
    before, large = resident(process.pid), "x" * (8 * MIB)  # the largest value that torch accepts
    for _ in range(2):
        logged = log.read_text().count("store flooded")
        store = client(port)
        store.set("kept", "no")
        with pytest.raises(RuntimeError):  # cut off
            for number in range(1000):
                store.set(f"flood/{number}", large)
        eventually(lambda logged=logged: log.read_text().count("store flooded") > logged)
        eventually(lambda: resident(process.pid) < before + MOST_BYTES / 2)
        assert re.search(r"heaviest=\"127\.0\.0\.1:\d+ sent \d{3,} MiB", log.read_text())
    assert not client(port).check(["kept"])


def test_connections_of_vanished_machines_are_ended(served):
    _, port, _ = served
    with socket.create_connection(("127.0.0.1", port)) as connected:
        ports = [f"0100007F:{number:04X}" for number in (port, connected.getsockname()[1])]
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        (timer,) = (line[5] for line in lines if line[1:3] == ports)
        active, _, left = timer.partition(":")
        assert active == "02"  # the keepalive timer
        assert int(left, 16) <= 60 * os.sysconf("SC_CLK_TCK")


def test_exhausted_file_limit_does_not_count_as_a_flood(served):
    process, port, log = served
    client(port).set("kept", "yes")
    looks = client(port)
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{process.pid}/fd")), before[1]))
    time.sleep(3.5)  # three looks
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
    assert looks.get("kept") == b"yes"
    assert "store flooded" not in log.read_text()


def test_many_small_writes_count_as_a_flood(served):
    process, port, log = served
    store, value = client(port), "x" * 20_000
    with pytest.raises(RuntimeError):
        for number in range(100_000):
            store.set(f"flood/{number}", value)
    eventually(lambda: "store flooded" in log.read_text())
    eventually(lambda: resident(process.pid) < MOST_BYTES)


def test_growth_outside_store_replaces_server_once():
    sizes, ended, looks = {"store": 0, "else": 100}, [], []

    def renew():
        sizes["store"] = 0
        ended.append(sum(sizes.values()))
        return True

    def size():
        looks.append(1)
        return sum(sizes.values())

    watch = OverloadWatch(renew, 0, 0, most=500, size=size, every=0.01)
    for grown, count in (("store", 1), ("else", 2), ("store", 3)):
        sizes[grown] += 600
        eventually(lambda count=count: len(ended) == count)
        seen = len(looks)
        eventually(lambda seen=seen: len(looks) > seen + 9)  # it has checked again since
    watch.stop()
    assert ended == [100, 700, 700]


IDLE = """
import resource, sys
from elastic_c10d import StoreServer
resource.setrlimit(resource.RLIMIT_NOFILE, (300, int(sys.argv[2])))
port = StoreServer(f"127.0.0.1:{sys.argv[1]}", 2).start()
print(port, flush=True)
for line in sys.stdin:
    try:
        print(len(open("/proc/self/status").read()), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.mark.parametrize("most", [4096, 300])
def test_idle_connections_do_not_exhaust_the_hosts_files(free_port, warm, most):
    """With `most` at 300, the connections exceed the file limit, so the store is replaced."""
    process = warm.start(("-c", IDLE, str(free_port()), str(most)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def can_open():
        process.stdin.write("open a file\n")
        process.stdin.flush()
        return process.stdout.readline().strip().isdigit()

    try:
        port = int(process.stdout.readline())
        client(port).set("kept", "value")
        held = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(400)]
        eventually(can_open)
        eventually(lambda: client(port).check(["kept"]) is (most > 400))
        assert can_open()
        for sock in held:
            sock.close()
    finally:
        process.kill()
        process.communicate()

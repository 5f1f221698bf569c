"""The figures of many agents: the verdict on a round, and the traffic between two looks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleet import Joined, Traffic, fleet, traffic_between, verdict
from benchmarks.workers.traffic import connections

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def agents(count, **changes):
    return [
        {"start": 10.0 + n / 10, "end": 12.0 + n / 10, "rank": n, "world_size": count, "members": "x", "error": ""}
        | changes
        for n in range(count)
    ]


def test_join_time_runs_from_first_start_to_last_return():
    joined = verdict(agents(5), 5)
    assert joined == Joined(pytest.approx(2.4))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rank": 0}, "ranks are not 0 to 2"),
        ({"world_size": 2}, "world sizes are not all 3"),
        ({"error": "TimeoutError: no"}, "3 of 3 did not join"),
    ],
)
def test_inconsistent_round_is_reported(changes, error):
    assert verdict(agents(3, **changes), 3).errors[0] == error


def test_different_members_are_reported():
    first, *others = agents(3)
    assert verdict([{**first, "members": "y"}, *others], 3).errors == ("the members are not the same for all",)


def look(**counted):
    return {"peer_port": 7, "sent": 0, "received": 0, "requests": 0} | counted


def test_traffic_is_the_difference_of_two_looks():
    before = [{"a": look(sent=10, received=20, requests=1)}, {}]
    after = [{"a": look(sent=15, received=40, requests=4)}, {"b": look(sent=3, received=4, requests=2)}]
    assert traffic_between(before, after, 7) == Traffic(2, 5, 8, 24, 0)


def test_byte_between_agents_is_counted_once():
    before = [{}, {}]
    after = [{"a": look(peer_port=8, sent=9, received=1)}, {"b": look(peer_port=9, sent=1, received=9)}]
    assert traffic_between(before, after, 7) == Traffic(other=10)


def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def test_kernel_counts_payload_and_segments():
    client, server = pair()
    with client, server:
        port = server.getsockname()[1]
        before = only(port)
        for _ in range(5):
            client.sendall(b"12345678")
            assert server.recv(100) == b"12345678"
            server.sendall(b"ok")
            assert client.recv(100) == b"ok"
        after = only(port)
    difference = replace(
        after,
        sent=after.sent - before.sent,
        received=after.received - before.received,
        requests=after.requests - before.requests,
    )
    assert (difference.sent, difference.received, difference.requests) == (40, 10, 5)


def only(port):
    found = [counted for counted in connections().values() if counted.peer_port == port]
    assert len(found) == 1
    return found[0]


STORE = """
import json, time
from datetime import timedelta
from torch.distributed import TCPStore
from benchmarks.workers.traffic import connections
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
client = TCPStore("127.0.0.1", server.port, is_master=False)
def requests():
    return sum(seen.requests for seen in connections().values() if seen.peer_port == server.port)
client.set("key", "value")
counts = {}
for name, call in {
    "add": lambda: client.add("number", 1),
    "compare_set": lambda: client.compare_set("other", "", "x"),
    "check": lambda: client.check(["key"]),
    "get": lambda: client.get("key"),
}.items():
    before = requests()
    for _ in range(50):
        call()
    counts[name] = requests() - before
print(json.dumps(counts))
"""


@pytest.mark.torch
def test_tcp_store_request_is_one_segment():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RES_OPTIONS": "timeout:1 attempts:1"}
    done = subprocess.run(
        [sys.executable, "-c", STORE], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    # Two requests for each get: wait for the key, and read it.
    assert done.stdout.strip() == '{"add": 50, "compare_set": 50, "check": 50, "get": 100}'


@pytest.mark.torch
@pytest.mark.parametrize("apart", [False, True], ids=["threads", "processes"])
def test_ended_round_is_reported_with_its_reason(apart):
    """Otherwise `alarms` would never count a false alarm."""
    with fleet("elastic", 3, 100, "keep_alive_interval=0.5,keep_alive_max_attempt=100", apart) as agents:
        assert not agents.join(100).errors
        assert agents.ended() == []
        agents.agents.pop().process.kill()
        while not (ended := agents.ended()):
            pass
    assert set(ended) == {"lost node2: its agent has ended"}

"""An agent whose loop is held up by an observer, and the endpoint that tells it to who asks."""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest

from elastic_core.agent import WorkerState
from elastic_core.health import create_healthcheck_server
from elastic_core.testing import RecordingObserver

pytest.importorskip("elastic_http_health")
ALLOWED = 0.3  # seconds without a turn of the loop


class Blocking(RecordingObserver):
    """Hears of a round and does not come back before it is let go."""

    def __init__(self):
        super().__init__()
        self.holds = threading.Event()
        self.let_go = threading.Event()

    def round_formed(self, fact):
        super().round_formed(fact)
        self.holds.set()
        self.let_go.wait(60)


@pytest.fixture
def livez():
    """A function that starts an endpoint for an agent, and returns one that asks it."""
    servers = []

    def livez(agent):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        servers.append(create_healthcheck_server(agent.alive_at, port, ALLOWED))
        servers[-1].start()
        return lambda: answer(port)

    yield livez
    for server in servers:
        server.stop()


def answer(port):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        link.request("GET", "/livez")
        found = link.getresponse()
        return found.status, found.read().decode()
    finally:
        link.close()


def eventually(ask, status):
    """The text of the first answer with this status."""
    deadline = time.monotonic() + 20
    while (found := ask())[0] != status:
        assert time.monotonic() < deadline, f"expected {status}, found {found}"
        time.sleep(0.02)
    return found[1]


def test_an_observer_that_blocks_turns_livez_red_until_it_comes_back(make_node, livez):
    observer = Blocking()
    node = make_node(observer=observer)
    ask = livez(node.agent)
    results = []
    loop = threading.Thread(target=lambda: results.append(node.run()))
    loop.start()
    try:
        assert observer.holds.wait(30)
        assert eventually(ask, 503).startswith("stuck: the agent's loop has not turned for ")
    finally:
        observer.let_go.set()
    eventually(ask, 200)  # it waits for its workers now, which is no way to be stuck
    until = time.monotonic() + ALLOWED * 2
    while time.monotonic() < until:
        assert ask()[0] == 200
    for rank in node.workers.running():
        node.workers.end(rank, 0)
    loop.join(30)
    assert [result.state for result in results] == [WorkerState.SUCCEEDED]

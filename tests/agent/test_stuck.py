"""The liveness endpoint of an agent whose loop is blocked by an observer."""

from __future__ import annotations

import http.client
import threading
import time

import pytest
from agent_fakes import RecordingObserver
from elastic_testing import Background, eventually

from elastic_core.agent import WorkerState
from elastic_core.health import create_healthcheck_server
from elastic_core.interfaces.observer import RoundFormed
from elastic_core.support.sockets import PortReservation

pytestmark = pytest.mark.integration

pytest.importorskip("elastic_http_health")
ALLOWED = 0.3  # seconds without an iteration of the loop


class Blocking(RecordingObserver):
    """Blocks on a RoundFormed fact until it is released."""

    def __init__(self):
        super().__init__()
        self.blocked = threading.Event()
        self.release = threading.Event()

    def __call__(self, fact):
        super().__call__(fact)
        if isinstance(fact, RoundFormed):
            self.blocked.set()
            self.release.wait(60)


@pytest.fixture
def livez():
    """A function that starts an endpoint for an agent and returns a function that queries it."""
    servers, ports = [], []

    def livez(agent):
        port = PortReservation()  # held so that no other process gets it before the server listens
        ports.append(port)
        servers.append(create_healthcheck_server(agent.alive_at, port.port, ALLOWED))
        servers[-1].start()
        return lambda: answer(port.port)

    yield livez
    for ending in (*(server.stop for server in servers), *(port.release for port in ports)):
        ending()


def answer(port):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        link.request("GET", "/livez")
        found = link.getresponse()
        return found.status, found.read().decode()
    finally:
        link.close()


def first(ask, status):
    """The text of the first answer with this status."""
    return eventually(lambda: next((text for found, text in [ask()] if found == status), None), 30, f"status {status}")


def test_blocked_observer_fails_livez_until_it_returns(make_node, livez):
    observer = Blocking()
    node = make_node(observer=observer, monitor_interval=3600.0)  # so that nothing wakes the agent while it waits
    ask = livez(node.agent)
    loop = Background(node.run)
    try:
        assert observer.blocked.wait(60)
        assert first(ask, 503).startswith("stuck: no iteration of the agent's loop for ")
    finally:
        observer.release.set()
    first(ask, 200)  # now it waits for its workers, so it is not stuck
    until = time.monotonic() + ALLOWED * 2
    while time.monotonic() < until:
        assert ask()[0] == 200
    for rank in node.workers.running():
        node.workers.end(rank, 0)
    assert loop.result(60).state is WorkerState.SUCCEEDED

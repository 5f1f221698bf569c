"""HealthContract with an endpoint from the standard library, and the fake view that it serves."""

from __future__ import annotations

import http.client
import http.server
import threading
from urllib import error, request

import pytest
from elastic_testing import FakeAgentView, HealthContract

from elastic_core.clock import SystemClock
from elastic_core.health import Probe, live, ready
from elastic_core.interfaces.health import AgentPhase, HealthCheckServer

pytestmark = pytest.mark.integration


class Plain(HealthCheckServer):
    """An endpoint with the two probes and the status only."""

    def __init__(self, view, port, timeout):
        self.view, self.port, self.timeout = view, port, timeout
        self.server = None

    def start(self):
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 30.0  # for silent clients, not for slow ones

            def do_GET(self):
                found = endpoint.answer(self.path)
                text = found.reason.encode()
                self.send_response(200 if found.ok else 503)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 64  # the contract's number of simultaneous clients

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def stop(self):
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()
            self.server = None

    def answer(self, path):
        if path == "/alive":
            fault = self.view.watchdog_fault()
            return live(self.view.alive_at(), SystemClock().timestamp(), self.timeout, fault)
        return ready(self.view.status()) if path == "/ready" else Probe(True, repr(self.view.status()))


def ask(port, what):
    try:
        with request.urlopen(f"http://127.0.0.1:{port}/{what}", timeout=10) as answer:
            return Probe(True, answer.read().decode())
    except error.HTTPError as refused:
        return Probe(False, refused.read().decode())
    except http.client.HTTPException as broken:
        raise OSError(str(broken)) from broken


class TestPlainEndpoint(HealthContract):
    @pytest.fixture
    def make(self):
        return Plain

    def ask(self, server, port, what):
        return ask(port, what)


def test_view_reports_changes_until_unsubscribed():
    view, versions = FakeAgentView(), []
    end = view.subscribe(lambda: versions.append(view.status().version))
    assert view.subscribers == 1
    view.show(phase=AgentPhase.JOINING, reason="one of two nodes is there")
    end()
    end()
    view.show(phase=AgentPhase.RUNNING)
    assert (versions, view.status().version, view.subscribers) == ([2], 3, 0)
    assert view.status().reason == "one of two nodes is there"


def test_stuck_view_reports_an_old_sign_of_life():
    view, clock = FakeAgentView(), SystemClock()
    view.stuck_for = 60.0
    before, alive_at, after = clock.timestamp(), view.alive_at(), clock.timestamp()
    assert before - 60 <= alive_at <= after - 60

"""Nothing, or another service, listens at the rendezvous endpoint: the report says what was tried and what answered,
and the exit code is the documented one."""

from __future__ import annotations

import http.server
import socket
import threading

import pytest
from job_of_nodes import free_port

from elastic_core.errors import ExitCode
from elastic_core.support.sockets import ip_address

pytestmark = pytest.mark.torch

GUEST = "--rdzv-conf=is_host=false,join_timeout=12"


@pytest.fixture
def silent():
    """The port of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def web():
    """The port of a web server."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_unreachable_endpoint_error_has_each_answer(job, silent, web):
    """The report lists every address of a name with its answer. All cases run in parallel, because each waits for its
    join timeout."""
    port = free_port()
    found = socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)
    addresses = [str(ip_address(str(sockaddr[0]))) for *_, sockaddr in found]
    answers = {
        f"localhost:{port}": [f"127.0.0.1:{port}: connection refused", *addresses],
        f"127.0.0.1:{silent}": [f"127.0.0.1:{silent}: a program listens at", "does not answer as a TCPStore"],
        f"127.0.0.1:{web}": [f"127.0.0.1:{web}: "],
        "no-such-host.invalid:29400": ["unknown name 'no-such-host.invalid'"],
    }
    agents = {
        endpoint: job.agent(f"a{number}", "--nnodes=1:2", GUEST, f"--rdzv-endpoint={endpoint}")
        for number, endpoint in enumerate(answers)
    }
    for endpoint, agent in agents.items():
        assert agent.code() == ExitCode.STORE_UNREACHABLE
        assert f"the rendezvous store at {endpoint} cannot be reached" in agent.report
        assert "check that --rdzv-endpoint is correct" in agent.report
        assert "Traceback" not in agent.err
        assert "[W" not in agent.err  # torch's own warnings
        for answer in answers[endpoint]:
            assert answer in agent.report


def test_loopback_endpoint_is_a_warning_for_several_nodes(job):
    """A single node gets no warning. Too few nodes and an unreachable store have different exit codes."""
    job.end()
    lonely = job.agent("a", "--nnodes=2", "--rdzv-conf=join_timeout=12")
    single = job.agent("b", "--nnodes=1", "--rdzv-id=other", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    assert lonely.code() == ExitCode.RENDEZVOUS_TIMEOUT
    assert f"rendezvous endpoint is loopback: endpoint={job.endpoint} max_nodes=2" in lonely.err
    assert "expected 2 nodes to join within 12 s (join_timeout)" in lonely.report
    assert single.code() == 0
    assert "rendezvous endpoint is loopback" not in single.err

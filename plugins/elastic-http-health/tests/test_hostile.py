"""Hostile clients: the endpoint stays within its limits and keeps answering probes."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import ask, send
from elastic_http_health.options import Limits, Options
from elastic_testing import Background, FakeAgentView

from elastic_core.clock import SystemClock

AT_ONCE = 20.0  # seconds for a probe on a machine that may stall; a wait for a client would take a minute
FAST = Limits(rate=1_000_000, burst=1_000_000, backlog=1024)


@contextlib.contextmanager
def slow_clients(port, count):
    """Connections that have sent half a request and then stay silent."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(socket.socket()) for _ in range(count)]
        for link in links:
            link.settimeout(60)
            link.connect(("127.0.0.1", port))
            link.send(b"GET /status HTTP/1.1\r\nHost: loc")
        yield links


def probe(port):
    begun = SystemClock().now()
    assert ask(port, "/livez").status == 200
    return SystemClock().now() - begun


def check_probes(times):
    assert max(times) < AT_ONCE


def test_two_hundred_slow_clients_do_not_delay_probes(serve):
    server = serve(Options(limits=Limits(head_seconds=60)))
    with slow_clients(server.port, 200):
        check_probes([probe(server.port) for _ in range(11)])
    assert server.counts.most_connections == Limits.connections
    assert server.counts.closed["evicted"] >= 200 - Limits.connections


class BusyView(FakeAgentView):
    """A view that blocks liveness probes, and with them the server, until `resume` is set."""

    def __init__(self):
        super().__init__()
        self.asked, self.resume = threading.Event(), threading.Event()

    def watchdog_fault(self):
        self.asked.set()
        assert self.resume.wait(60)
        return super().watchdog_fault()


def test_client_that_sends_no_request_is_disconnected(serve):
    view = BusyView()
    server = serve(Options(limits=Limits(head_seconds=0.2)), view)
    asking = Background(lambda: probe(server.port), 60)
    assert view.asked.wait(60)
    with slow_clients(server.port, 3) as links:  # all have sent their half before their time begins
        view.resume.set()
        assert [link.recv(1) for link in links] == [b""] * 3
    assert server.counts.closed["head timeout"] == 3
    asking.result()


def test_client_that_reads_no_answer_is_disconnected(view, serve):
    view.show(reason="x" * 8_000_000)
    server = serve(Options(limits=Limits(answer_seconds=0.3)))
    with socket.create_connection(("127.0.0.1", server.port), 60) as link:
        link.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        link.recv(1)
        while server.counts.connections:
            probe(server.port)
    assert server.counts.closed["answer timeout"] == 1


def test_client_sending_single_bytes_is_disconnected(serve):
    server = serve(Options(limits=Limits(spare_reads=1, head_seconds=60)))
    with socket.create_connection(("127.0.0.1", server.port), 60) as link, pytest.raises(OSError):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            link.send(b"a")
            probe(server.port)
    assert server.counts.closed["too many pieces"] == 1


def test_client_that_sends_while_waiting_is_disconnected(view, serve):
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), 60) as link:
        link.sendall(b"GET /changes?after=%d&wait=20 HTTP/1.1\r\nHost: localhost\r\n\r\n" % view.status().version)
        for _ in range(2):  # before the second answer, the server has read the request above
            ask(server.port, "/livez")
        with contextlib.suppress(ConnectionError):  # the server may close it while it sends
            link.sendall(b"x" * 100_000)
            assert link.recv(1) == b""


def malformed(seed):
    """A malformed request, different for each seed."""
    chance = random.Random(seed)
    kinds = (
        b"\x16\x03\x01" + chance.randbytes(200), b"GET / HTTP/9.9\r\n\r\n",
        chance.randbytes(chance.randint(1, 4000)) + b"\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1500, b"\r\n" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\0/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    )  # fmt: skip
    return kinds[seed % len(kinds)]


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_malformed_requests_stay_within_limits(serve, count):
    """Sent at full speed, with a rate limit that admits all of them."""
    server = serve(Options(limits=FAST))

    def send_hundred(first):
        for seed in range(first, first + 100):
            send_and_forget(server.port, malformed(seed))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send_hundred, range(0, 800, 100)))
        probe(server.port)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        list(pool.map(send_hundred, range(0, count, 100)))
        check_probes([probe(server.port) for _ in range(5)])
    assert server.counts.accepted >= count
    assert server.counts.most_connections <= Limits.connections
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    assert set(server.counts.answers) <= {200, 400, 405, 413, 421, 431, 501, 505}
    assert server.counts.answers[500] == 0


def send_and_forget(port, data):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as link:
        link.sendall(data)


def test_requests_beyond_the_rate_are_delayed(serve):
    server = serve(Options(limits=Limits(rate=50, burst=5)))
    begun = SystemClock().now()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: b"200" in send(server.port, b"GET /livez HTTP/1.0\r\n\r\n"), range(30)))
    assert SystemClock().now() - begun >= 0.5 - 0.05


def test_burst_is_answered_immediately_and_then_limited(serve):
    server = serve(Options(limits=Limits(rate=0.5, burst=20)))
    begun = SystemClock().now()
    for _ in range(20):
        probe(server.port)
    assert SystemClock().now() - begun < AT_ONCE  # without the burst, it would take 38
    probe(server.port)
    probe(server.port)
    assert SystemClock().now() - begun >= 2.0 - 0.05


def test_clients_waiting_for_changes_do_not_block_probes(view, serve):
    server = serve(Options(limits=Limits(connections=8, waiting=100)))
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in range(20)]
        for link in links:
            link.sendall(b"GET /changes?after=%d&wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n" % view.status().version)
        check_probes([probe(server.port) for _ in range(10)])
        assert server.counts.most_connections == 8
        view.show(round=2)
        # Which clients were evicted depends on whose request had been read when the probes arrived.
        assert 1 <= sum(first_bytes(link).startswith(b"HTTP/1.1 200 ") for link in links) <= 8


def first_bytes(link):
    """The first bytes of an answer; empty if the connection was closed."""
    try:
        return link.recv(100)
    except ConnectionError:
        return b""


def test_probes_are_answered_during_constant_changes(view, serve):
    """The view changes without a pause."""
    server = serve()
    done = threading.Event()
    changing = Background(lambda: [view.show(round=number) for number in iter(done.is_set, True)], 60)
    try:
        check_probes([probe(server.port) for _ in range(5)])
    finally:
        done.set()
        changing.result()

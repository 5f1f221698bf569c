"""Lifelines over real sockets: the end of an agent is reported, and nothing else, whatever happens to connections."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import select
import socket

import pytest

from elastic_core.interfaces.node import Member
from elastic_core.rendezvous.lifeline import Lifeline
from elastic_core.rendezvous.model import RoundId, Seat
from elastic_core.support.sockets import cannot_bind, resolve_host

pytestmark = pytest.mark.integration

LONG = 60.0
HERE = "127.0.0.1"
MANY = 200


class Watcher:
    """Watches one neighbor. `ended` has the keys of agents that have ended, `tried` the ports it is about to connect
    to. Its next attempt to connect fails with `fault`."""

    def __init__(self):
        self.seat = None
        self.ended = queue.Queue()
        self.tried = queue.Queue()
        self.fault = None
        self.lifeline = Lifeline(lambda: self.seat, self.ended.put, self._resolve)

    def watch(self, key, port, address=HERE, number=1):
        self.seat = Seat(key, Member(key, "", address, "default", 1), 0, port), RoundId(number, key)
        self.lifeline.look()
        while self.tried.get(timeout=LONG) != port:
            pass

    def _resolve(self, host, port):
        self.tried.put(port)
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        return resolve_host(host, port)


class Watched:
    """A lifeline whose connections can be seen."""

    def __init__(self, address=HERE):
        self.lifeline = Lifeline(lambda: None, print)
        self.port = self.lifeline.listen(address)
        assert self.port

    def meets(self):
        """Accept the next connection."""
        with socket.socket(fileno=os.dup(self.lifeline.descriptor)) as own:
            own.settimeout(LONG)
            return own.accept()[0]


@pytest.fixture
def watcher():
    made = Watcher()
    yield made
    made.lifeline.close()


@pytest.fixture
def watched():
    made = Watched()
    yield made
    made.lifeline.close()


def next_ended(watcher, known="next"):
    """The key that is reported next. This also ends one more agent, `known`: if nothing was reported before, that is
    the key."""
    last = Watched()
    watcher.watch(known, last.port)
    last.meets().close()
    connection = last.meets()
    last.lifeline.close()
    connection.close()  # not earlier: the kernel may forget a connection that begins while the port is closed
    return watcher.ended.get(timeout=LONG)


def test_end_is_reported_once(watcher, watched):
    watcher.watch("a", watched.port)
    connection = watched.meets()
    watched.lifeline.close()
    connection.close()
    assert watcher.ended.get(timeout=LONG) == "a"
    assert next_ended(watcher) == "next"


def test_unaccepted_connection_ends_with_the_listener(watcher, watched):
    """In a job, no agent accepts these connections."""
    watcher.watch("a", watched.port)
    watched.meets().close()  # proof of a connection; the watcher reconnects
    assert select.select([watched.lifeline.descriptor], [], [], LONG)[0]
    watched.lifeline.close()
    assert watcher.ended.get(timeout=LONG) == "a"


@pytest.mark.parametrize("address", [HERE, "::1", "localhost", "a-name-of-a-machine"])
def test_lifeline_listens_at_the_advertised_address(address):
    """A host name means all addresses, because peers may reach the host by another name."""
    if address == "::1" and cannot_bind(socket.AF_INET6, (address, 0)):
        pytest.skip("no IPv6 here")
    watched = Watched(address)
    with contextlib.closing(watched.lifeline):
        where = "::1" if address == "::1" else HERE
        with socket.create_connection((where, watched.port), LONG):
            pass
        with socket.socket(fileno=os.dup(watched.lifeline.descriptor)) as own:
            everywhere = own.getsockname()[0] in ("::", "0.0.0.0")
        assert everywhere == (address == "a-name-of-a-machine")


def test_closed_connection_reports_no_end(watcher, watched):
    watcher.watch("a", watched.port)
    for _ in range(3):
        watched.meets().close()
    assert next_ended(watcher) == "next"


def test_agent_is_still_watched_after_many_rounds(watcher, watched):
    """Its connections end whenever it listens again, which is once in each round."""
    for number in range(12):
        watcher.watch("a", watched.port, number=number)
        watched.meets().close()
    connection = watched.meets()
    watched.lifeline.close()
    connection.close()
    assert watcher.ended.get(timeout=LONG) == "a"


def test_agent_that_ends_during_a_reconnect_is_reported(watcher, watched):
    """The kernel resets a connection that begins while the port is closed."""
    watcher.watch("a", watched.port)
    connection = watched.meets()
    watcher.fault = ConnectionResetError()
    watched.lifeline.close()
    connection.close()
    assert watcher.ended.get(timeout=LONG) == "a"


def crowd(port):
    """Sockets that connect to this port, more than its backlog holds."""
    clients = [socket.socket() for _ in range(MANY)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex((HERE, port))
    return clients


def test_listening_again_keeps_port_and_clears_backlog(watcher, watched):
    third_parties = crowd(watched.port)
    assert watched.lifeline.listen(HERE) == watched.port
    for client in third_parties:
        client.close()
    assert watched.lifeline.listen(HERE) == watched.port
    watcher.watch("a", watched.port)
    watched.meets()


def test_full_backlog_reports_no_end(watcher, watched):
    """The watcher then has no lifeline and reports nothing, not even a real end."""
    third_parties = crowd(watched.port)
    watcher.watch("a", watched.port)
    assert next_ended(watcher) == "next"
    for client in third_parties:
        client.close()


def test_refused_first_connection_reports_no_end(watcher, watched):
    """A firewall may refuse connections from the start."""
    watched.lifeline.close()
    watcher.watch("a", watched.port)
    assert next_ended(watcher) == "next"


def test_end_of_an_earlier_neighbor_is_reported(watcher, watched):
    watcher.watch("a", watched.port)
    connection = watched.meets()
    watcher.seat = None
    watcher.lifeline.look()
    assert connection.recv(1) == b""  # it watches no neighbor
    watched.lifeline.close()
    watcher.watch("a", watched.port)
    assert watcher.ended.get(timeout=LONG) == "a"


def test_unresolvable_address_reports_no_end(watcher):
    watcher.watch("a", 1, address="a" * 64)  # too long for a DNS label, so no name server is asked
    assert next_ended(watcher) == "next"


def test_server_that_sends_data_is_no_lifeline(watcher):
    with socket.create_server((HERE, 0)) as server:
        watcher.watch("a", server.getsockname()[1])
        for _ in range(3):
            with server.accept()[0] as talks:
                talks.send(b"hello")
    assert watcher.ended.empty() or watcher.ended.get() == "a"  # the server did end


def test_lifeline_ends_with_last_copy_of_its_descriptor(watcher, watched):
    """The guardian has a copy."""
    copy = os.dup(watched.lifeline.descriptor)
    watcher.watch("a", watched.port)
    with socket.socket(fileno=os.dup(copy)) as own:
        own.settimeout(LONG)
        own.accept()[0].close()
        watched.lifeline.close()
        own.accept()[0].close()  # the copy still accepts connections
    os.close(copy)
    assert watcher.ended.get(timeout=LONG) == "a"


def test_forked_child_does_not_hold_the_lifeline(watcher, watched):
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    child = context.Process(target=lambda: (ready.set(), end.wait(LONG)))
    child.start()
    try:
        assert ready.wait(LONG)
        watcher.watch("a", watched.port)
        watched.meets().close()
        watched.lifeline.close()
        assert watcher.ended.get(timeout=LONG) == "a"
        assert child.is_alive()
    finally:
        end.set()
        child.join()


def test_closed_lifeline_neither_watches_nor_listens(watcher, watched):
    watcher.watch("a", watched.port)
    connection = watched.meets()
    watcher.lifeline.close()
    assert connection.recv(1) == b""
    watcher.seat = Seat("b", Member("b", "", HERE, "default", 1), 0, watched.port)
    watcher.lifeline.look()
    assert watcher.lifeline.listen(HERE) == 0
    assert watcher.lifeline.descriptor == -1
    assert watcher.tried.empty() and watcher.ended.empty()

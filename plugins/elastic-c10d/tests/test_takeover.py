"""Takeover by another node after the loss of the store's host, and endpoints that resolve to several machines."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from dataclasses import replace

import pytest
from elastic_c10d import C10dRendezvousBackend
from elastic_c10d.endpoint import Endpoint
from elastic_c10d.tcp_connector import HostElection, TcpConnector

from elastic_core.errors import RendezvousConnectionError
from elastic_core.support.sockets import Address

HOST = """
import sys
from elastic_c10d.create import create_backend
from elastic_core.interfaces.handler import RendezvousParameters
backend, _ = create_backend(RendezvousParameters("c10d", sys.argv[1], "job", 1, 4, connect_timeout=20.0))
backend.announce("host", b"")
print(backend.hosts_store, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def host(warm):
    """Starts a node in a separate process, which hosts the store."""
    started = []

    def start(endpoint):
        started.append(warm.start(("-c", HOST, endpoint), stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == "True\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_exactly_one_surviving_node_hosts_the_new_store(host, node, free_port, background, eventually, fails, beats):
    endpoint = f"127.0.0.1:{free_port()}"
    process = host(endpoint)
    nodes = [node(endpoint) for _ in range(3)]
    for name, backend in zip("abc", nodes, strict=True):
        backend.announce(name, name.encode())
    _, old, _ = nodes[0].set_state(b"before")
    process.kill()
    process.wait(60)
    for backend in nodes:
        assert fails(backend.get_state)  # this call notices the loss; the next one reconnects
    for reading in [background(backend.roster) for backend in nodes]:
        reading.result()
    assert sorted(backend.hosts_store for backend in nodes) == [False, False, True]
    for name, backend in zip("abc", nodes, strict=True):
        beats(backend, name, name.encode())
    for backend in nodes:
        assert sorted(seen.key for seen in backend.roster()) == ["a", "b", "c"]
        assert backend.get_state() is None
    assert nodes[1].set_state(b"stale", old) is None
    assert nodes[1].set_state(b"after")[2]
    assert [backend.get_state()[0] for backend in nodes] == [b"after"] * 3


def test_waits_move_to_the_new_host(host, node, free_port, background, fails):
    endpoint = f"127.0.0.1:{free_port()}"
    process = host(endpoint)
    one, two = node(endpoint), node(endpoint)
    for backend in (one, two):
        backend.connect()
    _, old, _ = two.set_state(b"before")
    assert not one.wait_for_state(old, 0.01)
    process.kill()
    process.wait(60)
    for backend in (one, two):
        assert fails(backend.get_state)
        assert backend.get_state() is None
    waiting = background(lambda: one.wait_for_state(None, 20))
    two.set_state(b"after")
    assert waiting.result() is True


def test_next_node_hosts_when_the_second_host_is_lost(host, node, free_port, fails):
    """The new host is lost as well."""
    endpoint = f"127.0.0.1:{free_port()}"
    process = host(endpoint)
    first, second = node(endpoint), node(endpoint)
    first.connect()
    second.connect()
    process.kill()
    process.wait(60)
    assert fails(first.get_state)
    first.get_state()
    assert fails(second.get_state)
    second.get_state()
    assert (first.hosts_store, second.hosts_store) == (True, False)
    first.close()
    assert fails(second.get_state)
    assert second.get_state() is None
    assert (first.hosts_store, second.hosts_store) == (False, True)


def test_node_with_is_host_false_does_not_take_over(host, node, free_port, fails):
    endpoint = f"127.0.0.1:{free_port()}"
    process = host(endpoint)
    backend = node(endpoint, is_host=False)
    backend.connect()
    process.kill()
    process.wait(60)
    assert fails(backend.get_state)
    with pytest.raises(RendezvousConnectionError, match="connection refused"):
        backend.get_state()


def test_nodes_do_not_take_over_a_separately_served_store(server_process, node, fails):
    server = server_process()
    backend = node(f"127.0.0.1:{server.port}")
    backend.connect()
    server.kill()
    for _ in range(3):
        assert fails(backend.get_state)
    server.start()
    assert backend.get_state() is None
    assert not backend.hosts_store


def address(host, port):
    return Address(socket.AF_INET, (host, port))


@pytest.fixture
def backend_at():
    """A backend whose endpoint has several addresses."""
    made = []

    def make(*addresses, listening=(), is_host=None):
        endpoint = Endpoint("a-name.example", addresses[0].port)
        hosting = HostElection(endpoint, is_host, 2, probe=lambda address: address.host in listening)
        connector = TcpConnector(endpoint, hosting, 0.2, connect_timeout=20.0, resolver=lambda *_: list(addresses))
        made.append(C10dRendezvousBackend(connector, "job"))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def test_heir_that_cannot_reach_its_own_store_hosts_none(free_port):
    """Its own address does not resolve on its machine. It used to look like a host, so no new store was started."""

    def unknown(host, port):
        raise socket.gaierror

    endpoint = Endpoint("127.0.0.1", free_port())
    connector = TcpConnector(endpoint, HostElection(endpoint, None, 2), resolver=unknown)
    with pytest.raises(socket.gaierror):
        connector.serve()
    assert not connector.hosts
    connector.close()


def test_heir_whose_store_is_not_recorded_hosts_again(host, free_port, eventually):
    """The old host ended while the heir was taking over. The heir then seemed to host, so it started no other store."""
    port = free_port()
    endpoint = Endpoint("127.0.0.1", port)
    ending = host(str(endpoint))
    connector = TcpConnector(endpoint, HostElection(endpoint, None, 2))
    try:
        connector.connect().release()
        assert connector.serve() is not None
        ending.kill()
        ending.wait()
        eventually(lambda: connects(connector))
        assert connector.hosts and str(connector.where) == str(endpoint)
        assert connector.serve() is None  # it already hosts the job's store
    finally:
        connector.close()


def connects(connector):
    try:
        connector.connect().release()
    except RendezvousConnectionError:
        return False
    return True


def test_silent_machine_gets_no_grace_because_another_host_answers(server_process, free_port):
    server = server_process()
    first, second = Endpoint("127.0.0.1", server.port), Endpoint("127.0.0.1", free_port())
    connector = TcpConnector(replace(first, rest=(second,)), connect_timeout=0.5)
    with contextlib.ExitStack() as held:
        held.callback(connector.close)
        connection = connector.connect()
        assert connector.grace
        connection.release()
        del connection
        server.kill()
        silent = held.enter_context(socket.socket())
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", server.port))
        silent.listen(0)
        for _ in range(3):  # until the queue is full and no further connection is answered
            client = held.enter_context(socket.socket())
            client.settimeout(0.2)
            client.connect_ex(("127.0.0.1", server.port))
        with pytest.raises(RendezvousConnectionError, match="connection refused"):
            connector.connect()
        assert connector.grace == 0.0


SMALLER, OWN, LARGER = "0.0.0.1", "127.0.0.1", "192.0.2.1"  # reserved addresses: no machine has the outer two


@pytest.mark.parametrize(("order", "is_host"), [((OWN, LARGER), None), ((LARGER, OWN), None), ((OWN, SMALLER), True)])
def test_machine_with_the_lowest_address_or_is_host_true_hosts(backend_at, free_port, order, is_host):
    port = free_port()
    backend = backend_at(*(address(host, port) for host in order), is_host=is_host)
    backend.connect()
    assert backend.hosts_store


def test_machine_with_a_higher_address_does_not_host(backend_at, free_port):
    port = free_port()
    backend = backend_at(address(OWN, port), address(SMALLER, port))
    with pytest.raises(RendezvousConnectionError, match=r"0\.0\.0\.1:\d+ should host the store.*is_host=true"):
        backend.connect()
    assert not backend.hosts_store


def test_node_does_not_host_if_another_address_serves_already(backend_at, free_port, fails):
    port = free_port()
    backend = backend_at(address(OWN, port), address(LARGER, port), listening=[LARGER])
    assert fails(backend.connect)
    assert not backend.hosts_store

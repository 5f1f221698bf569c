"""Ports and addresses, with real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.support.sockets import (
    REFUSED,
    Address,
    PortReservation,
    cannot_bind,
    resolve_host,
    try_connect,
    unreachable,
)

pytestmark = pytest.mark.integration

NOWHERE = "192.0.2.1"  # an address reserved for documentation


@pytest.fixture
def reservation():
    reservation = PortReservation()
    yield reservation
    reservation.release()


def listener(port, reuse, family=socket.AF_INET, address="0.0.0.0"):
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


# -- reservations


@pytest.mark.parametrize("reuse", [False, True])
def test_reserved_port_is_not_given_to_others(reservation, reuse):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            server = stack.enter_context(socket.socket())
            if reuse:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", 0))
            assert server.getsockname()[1] != reservation.port


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_server_with_reuseaddr_can_use_reserved_port(reservation, address):
    with (
        listener(reservation.port, reuse=True, address=address) as server,
        socket.create_connection(("127.0.0.1", reservation.port), timeout=10) as client,
    ):
        peer, _ = server.accept()
        with peer:
            client.sendall(b"hello")
            assert peer.recv(5) == b"hello"


def test_requested_port_is_reserved_and_released(quiet_port):
    reservation = PortReservation(quiet_port)
    assert reservation.port == quiet_port
    with pytest.raises(OSError, match="Address already in use"):
        listener(quiet_port, reuse=False)
    reservation.release()
    reservation.release()
    again = PortReservation(quiet_port)
    assert again.port == quiet_port
    again.release()
    listener(quiet_port, reuse=False).close()


def test_busy_port_is_a_configuration_error():
    with listener(0, reuse=False) as server, pytest.raises(ConfigurationError) as refused:
        PortReservation(server.getsockname()[1])
    (problem,) = refused.value.problems
    assert problem.origin == "--master-port"
    assert "Address already in use; stop the program that is listening on the port (see ss -ltnp)" in problem.message


@pytest.mark.parametrize("port", [70_000, -1])
def test_out_of_range_port_is_a_configuration_error(port):
    with pytest.raises(ConfigurationError, match=f"cannot use port {port}: ports range from 0 to 65535"):
        PortReservation(port)


# -- addresses and connections


@pytest.fixture
def busy():
    """The address of a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address(socket.AF_INET, server.getsockname())


def test_busy_port_accepts_connections_but_not_bind(busy):
    assert cannot_bind(busy.family, busy.sockaddr) == "already in use"
    assert try_connect(busy, 10) == ("", "127.0.0.1")


def test_free_port_can_be_bound_and_refuses_connections(quiet_port):
    quiet = Address(socket.AF_INET, ("127.0.0.1", quiet_port))
    assert cannot_bind(quiet.family, quiet.sockaddr) == ""
    assert try_connect(quiet, 10) == (REFUSED, "")


def test_name_resolves_to_distinct_addresses():
    assert "127.0.0.1:7" in map(str, resolve_host("localhost", 7))
    assert [address.host for address in resolve_host("::ffff:127.0.0.1", 7)] == ["127.0.0.1"]
    (found,) = resolve_host("127.0.0.2", 7)
    assert (found.host, found.port, found.is_loopback) == ("127.0.0.2", 7, True)


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".example", "no.such.host.invalid"])
def test_unknown_name_raises_gaierror(name):
    with pytest.raises(socket.gaierror):
        resolve_host(name, 7)


def test_link_local_address_has_its_interface():
    address = Address(socket.AF_INET6, ("fe80::1", 7, 0, 3))
    assert (str(address), address.scoped_host) == ("[fe80::1]:7", "fe80::1%3")
    assert Address(socket.AF_INET6, ("fe80::1", 7, 0, 0)).scoped_host == "fe80::1"


def test_host_that_refuses_connections_is_reachable(busy, quiet_port):
    targets = {
        "up": (busy.host, busy.port),
        "refuses": ("127.0.0.1", quiet_port),
        "unknown": ("no.such.host.invalid", 1),
        "far": (NOWHERE, 1),
    }
    assert unreachable(targets, 0.2) - {"far"} == {"unknown"}  # the result for the last one depends on the network
    assert unreachable({}, 10.0) == set()


def test_slow_name_lookup_delays_no_other_host(busy):
    known = threading.Event()

    def resolver(host, port):
        if host == "slow":
            known.wait(60)
        return resolve_host("127.0.0.1", port)

    targets = {"slow": ("slow", busy.port), "up": ("up", busy.port)}
    try:
        assert unreachable(targets, 1.0, resolver) == {"slow"}
    finally:
        known.set()

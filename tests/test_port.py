"""A reserved port is held by the kernel: these tests ask it."""

from __future__ import annotations

import contextlib
import socket

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.port import PortReservation


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


def test_nobody_else_can_bind_it(reservation):
    with pytest.raises(OSError, match="Address already in use"):
        listener(reservation.port, reuse=False)


@pytest.mark.parametrize("reuse", [False, True])
def test_whoever_asks_for_any_port_gets_another(reservation, reuse):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            server = stack.enter_context(socket.socket())
            if reuse:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", 0))
            assert server.getsockname()[1] != reservation.port


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_a_server_that_reuses_addresses_can_use_it_at_once(reservation, address):
    with (
        listener(reservation.port, reuse=True, address=address) as server,
        socket.create_connection(("127.0.0.1", reservation.port), timeout=10) as client,
    ):
        peer, _ = server.accept()
        with peer:
            client.sendall(b"hello")
            assert peer.recv(5) == b"hello"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_so_can_one_on_both_families(reservation):
    server = socket.create_server(("::", reservation.port), family=socket.AF_INET6, dualstack_ipv6=True)
    with server, socket.create_connection(("127.0.0.1", reservation.port), timeout=10):
        pass


def test_nobody_can_connect_while_nobody_listens(reservation):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reservation.port), timeout=10)


def test_two_reservations_have_two_ports(reservation):
    other = PortReservation()
    assert other.port != reservation.port
    other.release()


def test_a_wanted_port_is_taken_and_given_back(quiet_port):
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


def test_a_busy_port_is_a_configuration_error():
    with listener(0, reuse=False) as server, pytest.raises(ConfigurationError) as refused:
        PortReservation(server.getsockname()[1])
    (problem,) = refused.value.problems
    assert problem.origin == "--master-port"
    assert "cannot be bound: Address already in use; end what listens there (ss -ltnp shows it)" in problem.message


@pytest.mark.parametrize("port", [70_000, -1])
def test_a_number_that_is_no_port_is_a_configuration_error(port):
    with pytest.raises(ConfigurationError, match=f"found that {port} cannot be bound: ports are 0 to 65535"):
        PortReservation(port)

from __future__ import annotations

import socket

import pytest

from elastic_core.own_address import own_address_towards


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_towards_this_machine_it_is_loopback(host):
    assert own_address_towards(host, 9) in ("127.0.0.1", "::1")


def test_nobody_has_to_listen_and_nobody_is_told():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        assert own_address_towards(*sock.getsockname()) == "127.0.0.1"
        with pytest.raises(BlockingIOError):
            sock.recv(1)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 100])
def test_a_name_that_nobody_knows(host):
    assert own_address_towards(host, 9) is None

"""Addresses written by users, and the address at which other nodes reach this machine."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import ConfigurationError
from elastic_core.support.sockets import (
    address_towards,
    hosts_of,
    ip_address,
    is_loopback,
    joined_host_port,
    own_address_towards,
    seen_from_outside,
    split_host_port,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1", ("node1", 7)),
        ("node1:1234", ("node1", 1234)),
        ("node1:00065535", ("node1", 65535)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("fe80::1", ("fe80::1", 7)),
        ("[::1]", ("::1", 7)),
        ("[fe80::1%eth0]:1234", ("fe80::1%eth0", 1234)),
        ("x" * 253, ("x" * 253, 7)),
    ],
)
def test_host_and_port_are_split(text, expected):
    assert split_host_port(text, 7) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found ''"),
        (":1", "found ':1'"),
        ("a b:1", "found 'a b:1'"),
        ("a/b", "found 'a/b'"),
        ("x" * 254, f"found '{'x' * 254}'"),
        ("[::1", "found '[::1'; brackets are for an IPv6 address, as in [fe80::1]:7"),
        ("[::1]x", "found '[::1]x'; brackets are for an IPv6 address, as in [fe80::1]:7"),
        ("[10.0.0.1]:1", "found '[10.0.0.1]:1'; brackets are for an IPv6 address, as in [fe80::1]:7"),
        ("a:b:c", "found 'a:b:c', which has several colons but is not an IPv6 address"),
        ("a:", "found 'a:', whose port is not a number from 1 to 65535"),
        ("a:0", "found 'a:0', whose port is not a number from 1 to 65535"),
        ("a:65536", "found 'a:65536', whose port is not a number from 1 to 65535"),
        ("a:+1", "found 'a:+1', whose port is not a number from 1 to 65535"),
        ("a:١٢", "found 'a:١٢', whose port is not a number from 1 to 65535"),
        ("a:" + "9" * 5000, f"found 'a:{'9' * 5000}', whose port is not a number from 1 to 65535"),
    ],
)
def test_malformed_address_error_names_the_mistake(text, message):
    with pytest.raises(ValueError, match=r"^found ") as caught:
        split_host_port(text, 7)
    assert str(caught.value) == message


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True) | st.ip_addresses().map(str), st.integers(1, 65535))
def test_joined_address_survives_a_round_trip(host, port):
    assert split_host_port(joined_host_port(host, port), 7) == (host, port)


def test_ipv4_mapped_address_becomes_ipv4():
    assert ip_address("::ffff:127.0.0.1") == ipaddress.IPv4Address("127.0.0.1")
    assert ip_address("::ffff:7f00:1") == ipaddress.IPv4Address("127.0.0.1")


@pytest.mark.integration
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_own_address_towards_this_machine_is_loopback(host):
    assert own_address_towards(host, 9) in ("127.0.0.1", "::1")


@pytest.mark.parametrize("host", ["a..b", "x" * 100])
def test_unknown_name_gives_no_address(host):
    assert own_address_towards(host, 9) is None


@pytest.mark.integration
def test_hosts_meaning_this_machine_are_skipped():
    own = address_towards()
    assert address_towards([("a..b", 9), ("::1", 9), ("localhost", 9), ("0.0.0.0", 9)]) == own
    assert own is None or not is_loopback(own)


@pytest.mark.parametrize(
    ("own", "host", "expected"),
    [
        ("10.0.0.2", "node0", "10.0.0.2"),
        ("127.0.1.1", "node0", "node0"),
        ("::1", "10.0.0.2", "10.0.0.2"),
        ("127.0.0.1", "localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.2", "127.0.0.1"),
        ("fe80::1%eth0", "node0", "fe80::1%eth0"),
    ],
)
def test_loopback_address_is_replaced_by_the_host_name(own, host, expected):
    assert seen_from_outside(own, host) == expected


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("node0", [("node0", 7)]),
        ("http://node0, node1:2 ,[::1]:3", [("node0", 7), ("node1", 2), ("::1", 3)]),
        ("redis://user:word@node0:6379/0", [("node0", 6379)]),
        ("http://node0/", [("node0", 7)]),
    ],
)
def test_endpoint_hosts_are_extracted(endpoint, expected):
    assert hosts_of(endpoint, 7) == expected


@pytest.mark.parametrize("endpoint", ["", "/a/file", "node0,", "file:///a/file"])
def test_endpoint_without_hosts_is_rejected(endpoint):
    with pytest.raises(ConfigurationError, match=r"--rdzv-endpoint: expected HOST\[:PORT\],..., found "):
        hosts_of(endpoint, 7)


def test_loopback_addresses_are_recognized():
    assert all(map(is_loopback, ["localhost", "LOCALHOST", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::1%lo"]))
    assert not any(map(is_loopback, ["node0", "10.0.0.1", "fe80::1"]))

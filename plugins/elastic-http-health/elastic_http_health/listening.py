"""The sockets at which the endpoint answers."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.support.addresses import ip_address, joined_host_port
from elastic_http_health.access import is_loopback
from elastic_http_health.options import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Listen at every address that `host` stands for, as far as this machine has it, at one port; 0 for any.

    Raises:
        OSError: the port cannot be had; nothing is left behind.
        ConfigurationError: no address of this machine is meant.
    """
    made: list[socket.socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as undo:
        for family, address in _addresses(host):
            try:
                server = _listen_at(family, address, made[0].getsockname()[1] if made else port, backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            undo.callback(server.close)
            made.append(server)
        if not made:
            raise _bad_host(host, str(missing and missing.strerror)) from missing
        undo.pop_all()
    return made


def only_loopback(servers: list[socket.socket]) -> bool:
    """Whether no other machine reaches any of them."""
    return all(is_loopback(server.getsockname()[0]) for server in servers)


def address_of(server: socket.socket) -> str:
    """Where it listens, as a URL."""
    host, port = server.getsockname()[:2]
    return f"http://{joined_host_port(host, port)}/"


def _addresses(host: str) -> Iterator[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _bad_host(host, getattr(error, "strerror", None) or str(error)) from error
    pairs = (_unmapped(family, str(address[0])) for family, *_, address in found)
    for family, address in dict.fromkeys(pairs):
        if family in (socket.AF_INET, socket.AF_INET6):
            yield family, address


def _unmapped(family: socket.AddressFamily, host: str) -> tuple[socket.AddressFamily, str]:
    """A socket of IPv6 alone cannot be bound to an address of IPv4 that is mapped into IPv6, as /etc/hosts may have
    it."""
    address = ip_address(host)
    return (socket.AF_INET, str(address)) if address is not None and address.version == 4 else (family, host)


def _listen_at(family: socket.AddressFamily, address: str, port: int, backlog: int) -> socket.socket:
    both = address == "::" and socket.has_dualstack_ipv6()
    server = socket.create_server((address, port), family=family, backlog=backlog, dualstack_ipv6=both)
    server.setblocking(False)
    return server


def _bad_host(host: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        Problem(
            ORIGIN,
            f"expected as host an address of this machine or a name of one, found {host!r}: {reason}; "
            "127.0.0.1 is for this machine only, 0.0.0.0 for all its IPv4 addresses, :: for all",
        )
    )

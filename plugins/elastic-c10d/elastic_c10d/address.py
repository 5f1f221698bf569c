"""Addresses of an endpoint: resolving the name, asking whether anybody listens, and finding our own."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.host_port import joined_host_port

if TYPE_CHECKING:
    from elastic_c10d.endpoint import Endpoint
    from elastic_core.clock import Duration

_PLAIN = {
    errno.ECONNREFUSED: "connection refused",
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "no route",
    errno.EADDRNOTAVAIL: "no such address here",
    errno.ETIMEDOUT: "timed out",
    errno.ECONNRESET: "connection reset",
}


@dataclass(frozen=True)
class Address:
    """One address of an endpoint, ready for a socket."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]

    @property
    def host(self) -> str:
        return str(self.sockaddr[0])

    @property
    def dialled(self) -> str:
        """The host as torch is to be given it: a link-local address needs its interface."""
        scope = self.sockaddr[3] if len(self.sockaddr) > 3 else 0
        return f"{self.host}%{scope}" if scope and "%" not in self.host else self.host

    @property
    def port(self) -> int:
        return int(self.sockaddr[1])

    def __str__(self) -> str:
        return joined_host_port(self.host, self.port)


def resolve(endpoint: Endpoint) -> list[Address]:
    """All addresses of the endpoint, in the system's order of preference.

    Raises:
        socket.gaierror: the name is unknown, for now at least.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise socket.gaierror(socket.EAI_NONAME, f"not a host name: {error}") from error
    return list(dict.fromkeys(_address(family, tuple(sockaddr)) for family, _, _, _, sockaddr in found))


def probe(address: Address, timeout: Duration) -> tuple[str | None, str]:
    """Connect and hang up. Returns what went wrong, in plain words (None: somebody listens), and the local address of
    the connection, which is the one that others reach us by."""
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            sock.connect(address.sockaddr)
            return None, _unmapped(str(sock.getsockname()[0]))
    except OSError as error:
        return plain(error), ""


def plain(error: OSError) -> str:
    """What a socket's error means."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return _PLAIN.get(error.errno or 0) or error.strerror or str(error)


def is_local(address: Address) -> bool:
    """Whether the address is one of this machine's: a socket can be bound to it."""
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.bind((address.host, 0, *address.sockaddr[2:]))
            return True
    except OSError:
        return False


def in_order(address: Address) -> tuple[int, bytes]:
    """A key that sorts addresses alike on every machine: IPv4 first, which every machine has, then by their bytes."""
    packed = socket.inet_pton(address.family, address.host.partition("%")[0])
    return len(packed), packed


def _address(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> Address:
    """One of IPv4 that is mapped into IPv6, as /etc/hosts may have it, as the one of IPv4: no socket of IPv6 alone can
    be bound to it."""
    host = _unmapped(str(sockaddr[0]))
    return Address(family, sockaddr) if host == sockaddr[0] else Address(socket.AF_INET, (host, sockaddr[1]))


def _unmapped(host: str) -> str:
    return host.removeprefix("::ffff:") if "." in host else host

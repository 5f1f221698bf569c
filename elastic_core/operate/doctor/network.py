"""What the network answers: names, reverse look-ups, connections, free ports. Each call is bounded by who makes it.

Nothing here judges; `judged_network` does.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.host_port import ip_address, joined_host_port
from elastic_core.operate.bounded import Call, Late

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration
    from elastic_core.operate.doctor.places import Place

    LookUp = Callable[..., list[tuple[Any, ...]]]
    Reverse = Callable[[tuple[Any, ...], int], tuple[str, str]]

_PLAIN = {
    errno.ECONNREFUSED: "connection refused",
    errno.ENETUNREACH: "no route",
    errno.EHOSTUNREACH: "no route",
    errno.EADDRNOTAVAIL: "no such address here",
    errno.EADDRINUSE: "somebody has it",
    errno.EACCES: "not allowed",
    errno.ETIMEDOUT: "timed out",
}


@dataclass(frozen=True)
class Address:
    """One address of a place. `local`: it is this machine's."""

    family: int
    sockaddr: tuple[Any, ...]
    local: bool

    @property
    def host(self) -> str:
        return str(self.sockaddr[0])

    @property
    def is_loopback(self) -> bool:
        address = ip_address(self.host.partition("%")[0])
        return address is not None and address.is_loopback

    def __str__(self) -> str:
        return joined_host_port(self.host, int(self.sockaddr[1]))


@dataclass(frozen=True)
class Resolved:
    """A place and its addresses. `problem`: why there are none. `seconds`: that it took, None if it never came back."""

    place: Place
    addresses: tuple[Address, ...] = ()
    seconds: Duration | None = None
    problem: str = ""


@dataclass(frozen=True)
class Reversed:
    """The name of an address, empty if it has none. `seconds`: that it took, None if it never came back."""

    address: str
    name: str = ""
    seconds: Duration | None = None


@dataclass(frozen=True)
class Connected:
    """What an address answered. `problem`: empty if somebody listens. `ours`: this end's address then."""

    address: Address
    problem: str = ""
    seconds: Duration = 0.0
    ours: str = ""

    @property
    def refused(self) -> bool:
        """Whether the machine answered, and nobody listens."""
        return self.problem == _PLAIN[errno.ECONNREFUSED]


def resolved(place: Place, limit: Duration, clock: Clock, look_up: LookUp = socket.getaddrinfo) -> Resolved:
    """Look the place up, for `limit` seconds at most: the system's own patience may be half a minute."""
    begun = clock.now()
    try:
        found = Call(lambda: look_up(place.host, place.port, type=socket.SOCK_STREAM)).result(limit)
    except Late:
        return Resolved(place, problem=f"no answer within {limit:g} s")
    except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
        why = getattr(error, "strerror", None) or str(error)
        return Resolved(place, seconds=clock.now() - begun, problem=why)
    pairs = dict.fromkeys((int(item[0]), tuple(item[4])) for item in found)
    seconds = clock.now() - begun
    return Resolved(place, tuple(Address(*pair, is_local(*pair)) for pair in pairs), seconds)


def is_local(family: int, sockaddr: tuple[Any, ...]) -> bool:
    """Whether a socket can be bound to the address."""
    return not cannot_bind(family, (sockaddr[0], 0, *sockaddr[2:]))


def cannot_bind(family: int, sockaddr: tuple[Any, ...]) -> str:
    """Why nobody can serve there now; empty if one can."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(sockaddr)
            sock.listen(1)  # of two that are bound, only one may listen
    except OSError as error:
        return plain(error)
    return ""


def as_peers_see(host: str) -> str:
    """The form in which torch's store looks an address up backwards: IPv4 mapped into IPv6."""
    address = ip_address(host.partition("%")[0])
    return f"::ffff:{address}" if address is not None and address.version == 4 else host


def looked_up_backwards(host: str, limit: Duration, clock: Clock, reverse: Reverse = socket.getnameinfo) -> Reversed:
    """As torch's store does for every connection, for `limit` seconds at most."""
    begun = clock.now()
    mapped = as_peers_see(host)
    try:
        name, _ = Call(lambda: reverse((mapped, 0, 0, 0), socket.NI_NUMERICSERV)).result(limit)
    except Late:
        return Reversed(mapped)
    except (OSError, UnicodeError):
        name = ""
    return Reversed(mapped, "" if ip_address(name) is not None else name, clock.now() - begun)


def connected(address: Address, limit: Duration, clock: Clock) -> Connected:
    """Connect and hang up."""
    begun = clock.now()
    try:
        with socket.socket(address.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(limit)
            sock.connect(address.sockaddr)
            return Connected(address, "", clock.now() - begun, str(sock.getsockname()[0]).removeprefix("::ffff:"))
    except OSError as error:
        return Connected(address, plain(error), clock.now() - begun)


def plain(error: OSError) -> str:
    """What a socket's error means."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return _PLAIN.get(error.errno or 0) or error.strerror or str(error)


@contextlib.contextmanager
def listening(backlog: int) -> Any:
    """The port of a socket that listens on all addresses and never accepts: whoever connects is answered by the
    kernel, which is all that a check of the way between two machines needs."""
    family, host = (socket.AF_INET6, "::") if _has_ipv6() else (socket.AF_INET, "0.0.0.0")
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, 0))
        sock.listen(backlog)
        yield int(sock.getsockname()[1])


def _has_ipv6() -> bool:
    return not cannot_bind(socket.AF_INET6, ("::", 0))

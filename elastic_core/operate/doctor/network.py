"""What the network answers: names, reverse look-ups, connections, free ports. Each call is bounded by who makes it.

Nothing here judges; `judged_network` does.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.support import sockets
from elastic_core.support.addresses import ip_address
from elastic_core.support.bounded import Call, Late

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration
    from elastic_core.operate.doctor.places import Place

    LookUp = Callable[[str, int], list[sockets.Address]]
    Reverse = Callable[[tuple[Any, ...], int], tuple[str, str]]


@dataclass(frozen=True)
class Address(sockets.Address):
    """One address of a place. `local`: it is this machine's."""

    local: bool = False


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
        return self.problem == sockets.REFUSED


def resolved(place: Place, limit: Duration, clock: Clock, look_up: LookUp = sockets.resolve) -> Resolved:
    """Look the place up, for `limit` seconds at most: the system's own patience may be half a minute."""
    begun = clock.now()
    try:
        found = Call(lambda: look_up(place.host, place.port)).result(limit)
    except Late:
        return Resolved(place, problem=f"no answer within {limit:g} s")
    except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
        why = getattr(error, "strerror", None) or str(error)
        return Resolved(place, seconds=clock.now() - begun, problem=why)
    seconds = clock.now() - begun
    return Resolved(place, tuple(Address(it.family, it.sockaddr, sockets.is_local(it)) for it in found), seconds)


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
    problem, ours = sockets.connected(address, limit)
    return Connected(address, problem, clock.now() - begun, ours)


@contextlib.contextmanager
def listening(backlog: int) -> Any:
    """The port of a socket that listens on all addresses and never accepts: whoever connects is answered by the
    kernel, which is all that a check of the way between two machines needs."""
    with sockets.bound_everywhere(0) as sock:
        sock.listen(backlog)
        yield int(sock.getsockname()[1])

"""Where the nodes of a run meet, as far as the core can read an endpoint, and what the network answers there: names,
reverse look-ups, connections, free ports. Each call is bounded by who makes it. The judgements, below, are pure."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.operate.doctor.finding import Check, Finding, Level, fault, note, ok, warning
from elastic_core.support import sockets
from elastic_core.support.addresses import ip_address, joined_host_port, split_host_port
from elastic_core.support.bounded import Call, Late

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_core.clock import Clock, Duration

    LookUp = Callable[[str, int], list[sockets.Address]]
    Reverse = Callable[[tuple[Any, ...], int], tuple[str, str]]

DEFAULT_PORTS: Mapping[str, int] = {
    "c10d": 29400,
    "static": 29500,
    **dict.fromkeys(("etcd", "etcd-v2", "etcd-v3", "etcd-legacy"), 2379),
}
"""Of the backends that are ours. Their endpoints are hosts; a stranger's may be anything."""

SLOW: Duration = 1.0
"""Seconds from which on a look-up is slow."""

_IN_DNS = "put it into DNS or into /etc/hosts on every node, or write an address instead of the name"


@dataclass(frozen=True)
class Place:
    """One host of an endpoint, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return joined_host_port(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether it is written so that it can only be this machine, whichever one reads it."""
        address = ip_address(self.host)
        return self.host.lower() in ("localhost", "ip6-localhost") or (address is not None and address.is_loopback)


def places_of(backend: str, endpoint: str, conf: Mapping[str, str]) -> tuple[Place, ...]:
    """The hosts of an endpoint; none if it is a file or the like.

    Raises:
        ValueError: the backend is one of ours, and this cannot be an endpoint of it.
    """
    if not endpoint.strip() or conf.get("store_type", conf.get("store-type")) == "file":
        return ()
    port = DEFAULT_PORTS.get(backend)
    try:
        parts = [part.strip().partition("://")[2] or part.strip() for part in endpoint.split(",")]
        found = [split_host_port(part.removesuffix("/"), port or 0, part_of=endpoint) for part in parts]
    except ValueError:
        if port is None:
            return ()
        raise
    if port is None and not all(number for _, number in found):
        return ()  # a stranger's, whose default we do not know; it may be a name of anything
    return tuple(dict.fromkeys(Place(*item) for item in found))


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


def judged_name(found: Resolved, nodes: int) -> Finding:
    """`nodes`: the most that the job may have."""
    if found.problem:
        return fault(Check.NAME, f"{found.place.host} cannot be resolved: {found.problem}", _IN_DNS)
    told = f"{found.place.host} is {', '.join(_shown(address) for address in found.addresses)}"
    if found.seconds is not None and found.seconds >= SLOW:
        advice = f"ask the nameservers of /etc/resolv.conf why; or {_IN_DNS}"
        return warning(Check.NAME, f"{told}; it took {found.seconds:.1f} s", advice)
    if nodes > 1:
        return _for_several(found, told)
    return ok(Check.NAME, told)


def _for_several(found: Resolved, told: str) -> Finding:
    if found.place.is_loopback:
        advice = "no other machine reaches it: write a name or an address that all nodes reach"
        return warning(Check.NAME, told, advice)
    if all(address.is_loopback for address in found.addresses):
        advice = (
            f"right on the machine of that name only; elsewhere getent hosts {found.place.host} must show its address"
        )
        return note(Check.NAME, f"{told}: loopback", advice)
    if any(a.local for a in found.addresses) and any(not a.local for a in found.addresses):
        advice = "write a name or an address of one machine: each of them could host the store"
        return warning(Check.NAME, f"{told}: addresses of several machines", advice)
    families = [address.family for address in found.addresses]
    if len(families) > len(set(families)):
        return note(Check.NAME, f"{told}: several addresses", "well, if they are of one machine, or of one cluster")
    return ok(Check.NAME, told)


def _shown(address: Address) -> str:
    return f"{address.host} (this machine)" if address.local else address.host


def judged_reverse(found: Reversed, whose: str) -> Finding:
    """`whose`: the address, in words. A missing name does no harm as long as its absence is told quickly."""
    told = f"{whose}, {found.address}, backwards: {found.name or 'no name'}"
    if found.seconds is not None and found.seconds < SLOW:
        return ok(Check.REVERSE_LOOKUP, f"{told}, in {_milliseconds(found.seconds)}")
    took = "no answer in time" if found.seconds is None else f"after {found.seconds:.1f} s"
    name = found.name or "NAME"
    return warning(
        Check.REVERSE_LOOKUP,
        f"{told}, {took}; torch's store waits for that at every connection",
        f"add the line '{found.address} {name}' to /etc/hosts where the store is hosted, or set "
        "RES_OPTIONS='timeout:1 attempts:1' for elastic run",
    )


def judged_address(
    advertised: str | None, addresses: Sequence[Address], is_given: bool, nodes: int, meets_at_loopback: bool
) -> Finding:
    """The address that this node would tell the others.

    Args:
        advertised: as text; None if it is not known.
        addresses: what it resolves to here.
        is_given: by --local-addr.
        meets_at_loopback: the endpoint is of this machine only, so that an address of loopback does no harm.
    """
    if advertised is None:
        return warning(
            Check.ADDRESS,
            "no route to the endpoint, so that this node would tell its host name",
            "give --local-addr an address of this machine that the other nodes reach",
        )
    told = f"this node tells the others {advertised}"
    if not addresses:
        return fault(Check.ADDRESS, f"{told}, which cannot be resolved here", "correct --local-addr, or leave it out")
    if not any(address.local for address in addresses):
        advice = "well, if it is translated to this machine; else correct --local-addr (ip -brief address lists them)"
        return warning(Check.ADDRESS, f"{told}, which is no address of this machine", advice)
    if nodes > 1 and not meets_at_loopback and all(address.is_loopback for address in addresses):
        advice = "give --local-addr an address that the other nodes reach (ip -brief address lists them)"
        return warning(Check.ADDRESS, f"{told}, where no other machine reaches it", advice)
    return ok(Check.ADDRESS, f"{told}{', as --local-addr says' if is_given else ''}")


def judged_connections(found: Sequence[Connected], is_hosted: bool) -> Iterator[Finding]:
    """`is_hosted`: one of the nodes hosts the store, so that there is none before the job begins."""
    someone = any(not item.problem for item in found)
    for item in found:
        if not item.problem:
            yield ok(Check.CONNECTION, f"{item.address} accepts, after {_milliseconds(item.seconds)}")
        elif item.refused:
            yield _nobody_there(item, someone, is_hosted)
        else:
            yield _out_of_reach(item, someone)


def _nobody_there(item: Connected, someone: bool, is_hosted: bool) -> Finding:
    told = f"nothing listens at {item.address} yet"
    if someone:
        return note(Check.CONNECTION, told)
    if not is_hosted:
        return warning(Check.CONNECTION, told, "start the service there; it must be up before the job begins")
    if item.address.local:
        return note(
            Check.CONNECTION, told, "this machine would host the store: start elastic run or elastic serve here"
        )
    return note(Check.CONNECTION, told, "the machine answers; start elastic run, or elastic serve, there")


def _out_of_reach(item: Connected, someone: bool) -> Finding:
    told = f"{item.address} is out of reach: {item.problem}"
    advice = "check that the machine is up, the address is its own, and no firewall or security group drops the port"
    return Finding(Level.NOTE if someone else Level.WARNING, Check.CONNECTION, told, advice)


def judged_port(check: Check, what: str, port: int, problem: str) -> Finding:
    """Whether something of ours can serve. `problem`: why not; empty if it can."""
    if not problem:
        return ok(check, f"{what}: port {port} is free here")
    ports = " (ports below 1024 are root's)" if 0 < port < 1024 else ""
    return fault(
        check,
        f"{what}: port {port} cannot be had here: {problem}",
        f"choose another{ports}, or end what listens there: ss -ltnp shows it",
    )


def judged_store_absence(is_expected: bool, where: str, is_hosted: bool) -> Finding:
    """Nobody answered at any address of the endpoint."""
    start = f"elastic serve --rdzv-endpoint {where}" if is_hosted else "the service"
    if is_expected:
        return fault(
            Check.STORE, f"no store can be reached at {where}", f"start {start}; see the lines above for the way"
        )
    told = f"there is no store at {where} yet, so nothing was asked of it"
    if is_hosted:
        return note(Check.STORE, told, "the first elastic run on its machine starts it")
    return warning(Check.STORE, told, f"start {start} before the job")


def _milliseconds(seconds: Duration) -> str:
    return f"{seconds * 1000:.1f} ms"

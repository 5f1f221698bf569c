"""Checks the network as seen from this machine: the hosts of the rendezvous endpoint, their names, reverse lookups,
connections and ports. `surroundings_of` runs all checks, each with a time limit. The functions at the end of the
module, which judge the results, are pure."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from elastic_core.diagnostics import LOOPBACK
from elastic_core.plugin import (
    REFUSED,
    BackgroundCall,
    CallTimeout,
    ConfigurationError,
    address_towards,
    bound_everywhere,
    cannot_bind,
    hosts_of,
    ip_address,
    is_local_address,
    is_loopback,
    is_loopback_address,
    means_this_machine,
    resolve_host,
    seen_from_outside,
    try_connect,
)
from elastic_core.plugin import Address as SocketAddress
from elastic_doctor.finding import Check, fault, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from elastic_core.plugin import CheckResult, Clock, Duration, RendezvousBackendRecord, Settings

    LookUp = Callable[[str, int], list[SocketAddress]]
    Reverse = Callable[[tuple[Any, ...], int], tuple[str, str]]

T = TypeVar("T")
R = TypeVar("R")

SLOW: Duration = 1.0
"""Seconds after which a lookup is considered slow."""

_MARGIN: Duration = 2.0  # seconds added to the limit of a call that has its own time limit
_IN_DNS = "add it to DNS or to /etc/hosts on every node, or use an address instead of the name"


class Place(NamedTuple):
    """One host of an endpoint, without brackets, and its port."""

    host: str
    port: int


def meets_itself(settings: Settings, record: RendezvousBackendRecord | None, nodes: int) -> bool:
    """Return whether this is a single-node job that hosts its own store at any free port."""
    if nodes != 1 or record is None or not record.hosted:
        return False
    if not settings.rdzv_endpoint:
        return True
    with contextlib.suppress(ConfigurationError):
        places = places_of(settings, record)
        return bool(places) and not any(place.port for place in places)
    return False


def places_of(settings: Settings, record: RendezvousBackendRecord | None) -> tuple[Place, ...]:
    """Return the hosts of the endpoint. The result is empty if the endpoint has no hosts or its format is unknown.

    Raises:
        ConfigurationError: the endpoint is not valid for the backend.
    """
    if not settings.rdzv_endpoint.strip() or record is None:
        return ()
    if record.hosts_of is not None:
        return tuple(dict.fromkeys(Place(*item) for item in record.hosts_of(settings)))
    with contextlib.suppress(ConfigurationError):
        found = hosts_of(settings.rdzv_endpoint, 0)
        if all(port for _, port in found):
            return tuple(dict.fromkeys(Place(*item) for item in found))
    return ()


@dataclass(frozen=True)
class Address(SocketAddress):
    """One address of a place. `local` is True if the address belongs to this machine."""

    local: bool = False


@dataclass(frozen=True)
class Lookup:
    """The result of looking up a place. If there are no addresses, `problem` is the reason. `seconds` is the duration
    of the lookup, or None if it did not finish."""

    place: Place
    addresses: tuple[Address, ...] = ()
    seconds: Duration | None = None
    problem: str = ""


@dataclass(frozen=True)
class ReverseLookup:
    """The result of a reverse lookup. `name` is empty if the address has no name. For `seconds`, see `Lookup`."""

    address: str
    name: str = ""
    seconds: Duration | None = None


@dataclass(frozen=True)
class Connected:
    """The result of connecting to an address. `problem` is the reason for a failure, or empty if the connection was
    accepted. `ours` is the connection's local address."""

    address: Address
    problem: str = ""
    seconds: Duration = 0.0
    ours: str = ""

    @property
    def refused(self) -> bool:
        """Whether the machine answered, but no program listens on the port."""
        return self.problem == REFUSED


def resolved(place: Place, limit: Duration, clock: Clock, look_up: LookUp = resolve_host) -> Lookup:
    """Resolve the place within `limit` seconds. The resolver's own timeout may be as long as half a minute."""
    begun = clock.now()
    try:
        found = BackgroundCall(lambda: look_up(place.host, place.port)).result(limit)
    except CallTimeout:
        return Lookup(place, problem=f"no answer within {limit:g} s")
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        why = getattr(error, "strerror", None) or str(error)
        return Lookup(place, seconds=clock.now() - begun, problem=why)
    seconds = clock.now() - begun
    return Lookup(place, tuple(Address(it.family, it.sockaddr, is_local_address(it)) for it in found), seconds)


def looked_up_backwards(
    host: str, limit: Duration, clock: Clock, reverse: Reverse = socket.getnameinfo
) -> ReverseLookup:
    """Look up the name of an address within `limit` seconds. torch's store does such a lookup for every connection."""
    begun = clock.now()
    address = ip_address(host.partition("%")[0])
    mapped = f"::ffff:{address}" if address is not None and address.version == 4 else host
    try:
        name, _ = BackgroundCall(lambda: reverse((mapped, 0, 0, 0), socket.NI_NUMERICSERV)).result(limit)
    except CallTimeout:
        return ReverseLookup(mapped)
    except (OSError, UnicodeError):
        name = ""
    return ReverseLookup(mapped, "" if ip_address(name) is not None else name, clock.now() - begun)


def connected(address: Address, limit: Duration, clock: Clock) -> Connected:
    """Connect to the address within `limit` seconds, and then close the connection."""
    begun = clock.now()
    problem, ours = try_connect(address, limit)
    return Connected(address, problem, clock.now() - begun, ours)


@contextlib.contextmanager
def listening(backlog: int) -> Iterator[int]:
    """Listen on all addresses while the context is open, and yield the port. The connections are not accepted. The
    kernel completes them anyway, which is enough to check the network."""
    with bound_everywhere(0) as sock:
        sock.listen(backlog)
        yield int(sock.getsockname()[1])


@dataclass(frozen=True)
class NetworkFindings:
    """The results of the network checks.

    Args:
        places: the hosts of the endpoint; empty if it is not on a network.
        advertised: the address that this node would advertise; None if unknown.
        is_served: whether a program listens at the endpoint.
        may_host: whether this node may host the store.
    """

    places: tuple[Place, ...]
    advertised: str | None
    is_served: bool
    may_host: bool
    findings: tuple[CheckResult, ...]


def surroundings_of(
    settings: Settings, record: RendezvousBackendRecord | None, nodes: int, limit: Duration, clock: Clock
) -> NetworkFindings:
    """Run the network checks. Checks of one kind run in parallel, each within `limit` seconds. `nodes` is the maximum
    number of nodes."""
    is_hosted = record is not None and record.hosted
    try:
        places = () if meets_itself(settings, record, nodes) else places_of(settings, record)
    except ConfigurationError as error:
        wrong = fault(Check.NAME, str(error), "correct --rdzv-endpoint")
        return NetworkFindings((), None, False, False, (wrong, *_ports(settings, ())))
    names = _in_parallel(resolved, places, limit, clock)
    addresses = [address for name in names for address in name.addresses]
    tried = _in_parallel(connected, addresses, limit, clock)
    is_served = any(not item.problem for item in tried)
    local = [address for address in addresses if is_hosted and address.local]
    findings = [judged_name(name, nodes) for name in names]
    findings += judged_connections(tried, is_hosted)
    findings += _ports(settings, () if is_served else local)
    # If the endpoint is a loopback address, a store that `elastic serve` can host listens only on loopback.
    stays_here = (
        record is not None and record.serve is not None and all(is_loopback_address(host) for host, _ in places)
    )
    advertised = _advertised(settings, nodes, places, tried, limit, stays_here)
    if places:
        own = () if advertised is None else resolved(Place(advertised, 0), limit, clock).addresses
        at_loopback = all(is_loopback(host) for host, _ in places)
        findings.append(judged_address(advertised, own, settings.local_addr is not None, nodes, at_loopback))
        if is_hosted:
            whose = {address.host: "the endpoint's address" for address in addresses}
            whose |= {address.host: "our address" for address in own}
            found = _in_parallel(looked_up_backwards, whose, limit, clock)
            findings += map(judged_reverse, found, whose.values())
    return NetworkFindings(places, advertised, is_served, bool(local), tuple(findings))


def _in_parallel(look: Callable[[T, Duration, Clock], R], items: Iterable[T], limit: Duration, clock: Clock) -> list[R]:
    calls = [BackgroundCall(partial(look, item, limit, clock)) for item in items]
    return [call.result(limit + _MARGIN) for call in calls]


def _advertised(
    settings: Settings,
    nodes: int,
    places: Sequence[Place],
    tried: Sequence[Connected],
    limit: Duration,
    stays_here: bool,
) -> str | None:
    """Return the address that a backend would advertise, or None if it is unknown. If `stays_here` is True, a store
    hosted by a node listens only on loopback."""
    if settings.local_addr:
        return settings.local_addr
    if nodes == 1:
        return LOOPBACK
    own = next((item.ours for item in tried if item.ours), None)
    if own is not None and (stays_here or not (is_loopback(own) and means_this_machine(places[0].host))):
        return seen_from_outside(own, places[0].host)
    with contextlib.suppress(CallTimeout):
        return BackgroundCall(lambda: address_towards(places)).result(limit)
    return None


def _ports(settings: Settings, host_at: Sequence[Address]) -> Iterator[CheckResult]:
    """Check the ports that this node needs. `host_at` lists the local addresses at which this node may host the
    store."""
    if host_at:
        problem = cannot_bind(host_at[0].family, host_at[0].sockaddr)
        yield judged_port(Check.PORT, "the store that this machine would host", host_at[0].port, problem)
    if settings.rdzv_backend == "local" and settings.master_port:
        problem = cannot_bind(socket.AF_INET, ("0.0.0.0", settings.master_port))
        yield judged_port(Check.PORT, "--master-port", settings.master_port, problem)
    if settings.health_port and settings.health is not None:
        host = settings.health_conf.get("host", LOOPBACK)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        problem = cannot_bind(family, (host, settings.health_port))
        yield judged_port(Check.HEALTH_PORT, "--health-port", settings.health_port, problem)


def judged_name(found: Lookup, nodes: int) -> CheckResult:
    """Judge a name lookup. `nodes` is the maximum number of nodes."""
    host, addresses = found.place.host, found.addresses
    if found.problem:
        return fault(Check.NAME, f"{host} cannot be resolved: {found.problem}", _IN_DNS)
    text = f"{host} is {', '.join(f'{a.host} (this machine)' if a.local else a.host for a in addresses)}"
    if found.seconds is not None and found.seconds >= SLOW:
        advice = f"check the nameservers in /etc/resolv.conf, or {_IN_DNS}"
        return warning(Check.NAME, f"{text}; the lookup took {found.seconds:.1f} s", advice)
    if nodes == 1:
        return ok(Check.NAME, text)
    if is_loopback_address(host):
        advice = "no other machine can reach it; use a name or an address that all nodes can reach"
        return warning(Check.NAME, text, advice)
    if is_loopback(host):  # `localhost`, which the store's host may use if other nodes use that host's name
        advice = "valid only on the store's host; on all other machines, use its name or address"
        return warning(Check.NAME, text, advice)
    if all(address.is_loopback for address in addresses):
        advice = f"correct only on the machine with that name; elsewhere, getent hosts {host} must show its address"
        return note(Check.NAME, f"{text}: loopback", advice)
    if any(a.local for a in addresses) and not all(a.local for a in addresses):
        advice = "use a name or an address of one machine, because any of them could host the store"
        return warning(Check.NAME, f"{text}: addresses of several machines", advice)
    if len(addresses) > len({address.family for address in addresses}):
        return note(Check.NAME, f"{text}: several addresses", "fine if they belong to one machine, or to one cluster")
    return ok(Check.NAME, text)


def judged_reverse(found: ReverseLookup, whose: str) -> CheckResult:
    """Judge a reverse lookup. `whose` describes the address. A fast lookup that finds no name is harmless."""
    text = f"{whose}, {found.address}, resolves to {found.name or 'no name'}"
    if found.seconds is not None and found.seconds < SLOW:
        return ok(Check.REVERSE_LOOKUP, f"{text}, in {_milliseconds(found.seconds)}")
    took = "no answer in time" if found.seconds is None else f"after {found.seconds:.1f} s"
    return warning(
        Check.REVERSE_LOOKUP,
        f"{text}, {took}; this delays every connection to torch's store",
        f"add the line '{found.address} {found.name or 'NAME'}' to /etc/hosts on the store's host, or set "
        "RES_OPTIONS='timeout:1 attempts:1' for elastic run",
    )


def judged_address(
    advertised: str | None, addresses: Sequence[Address], is_given: bool, nodes: int, meets_at_loopback: bool
) -> CheckResult:
    """Judge the address that this node would advertise.

    Args:
        advertised: the address; None if unknown.
        addresses: the addresses to which the advertised address resolves on this machine.
        is_given: whether the advertised address comes from --local-addr.
        meets_at_loopback: whether the endpoint is a loopback address, so that advertising one is harmless.
    """
    if advertised is None:
        text = "no route to the endpoint, so this node would advertise its host name"
        return warning(Check.ADDRESS, text, "set --local-addr to an address that the other nodes can reach")
    text = f"this node advertises {advertised}"
    if not addresses:
        return fault(Check.ADDRESS, f"{text}, which cannot be resolved here", "correct or remove --local-addr")
    if not any(address.local for address in addresses):
        advice = "fine with NAT to this machine; otherwise, correct --local-addr (ip -brief address lists addresses)"
        return warning(Check.ADDRESS, f"{text}, which is not an address of this machine", advice)
    if nodes > 1 and not meets_at_loopback and all(address.is_loopback for address in addresses):
        advice = "set --local-addr to an address that the other nodes can reach (ip -brief address lists addresses)"
        return warning(Check.ADDRESS, f"{text}, which no other machine can reach", advice)
    return ok(Check.ADDRESS, f"{text}{' (from --local-addr)' if is_given else ''}")


def judged_connections(found: Sequence[Connected], is_hosted: bool) -> Iterator[CheckResult]:
    """Judge the connections to the endpoint. If `is_hosted` is True, a node of the job hosts the store, so a missing
    store is no fault."""
    accepted = any(not item.problem for item in found)
    for item in found:
        text = f"nothing listens at {item.address} yet"
        if not item.problem:
            yield ok(Check.CONNECTION, f"{item.address} accepts connections, after {_milliseconds(item.seconds)}")
        elif not item.refused:
            advice = (
                "check that the machine is up, the address is right, and no firewall or security group drops the port"
            )
            yield (note if accepted else warning)(
                Check.CONNECTION, f"{item.address} is unreachable: {item.problem}", advice
            )
        elif accepted:
            yield note(Check.CONNECTION, text)
        elif not is_hosted:
            yield warning(Check.CONNECTION, text, "start the service there; it must run before the job starts")
        elif item.address.local:
            advice = "this machine would host the store: start elastic run or elastic serve here"
            yield note(Check.CONNECTION, text, advice)
        else:
            yield note(Check.CONNECTION, text, "the machine answers; start elastic run or elastic serve there")


def judged_port(check: Check, what: str, port: int, problem: str) -> CheckResult:
    """Judge whether the port can be used. `problem` is the reason why it cannot, or empty if it can."""
    if not problem:
        return ok(check, f"{what}: port {port} is free here")
    ports = " (ports below 1024 require root)" if 0 < port < 1024 else ""
    advice = f"choose another port{ports}, or stop the program that uses it (ss -ltnp lists it)"
    return fault(check, f"{what}: port {port} is not available here: {problem}", advice)


def judged_store_absence(is_expected: bool, where: str, is_hosted: bool) -> CheckResult:
    """Return the finding for an endpoint at which no address accepts connections."""
    start = f"elastic serve --rdzv-endpoint {where}" if is_hosted else "the service"
    if is_expected:
        advice = f"start {start}; the lines above show which part of the network fails"
        return fault(Check.STORE, f"no store can be reached at {where}", advice)
    text = f"no store at {where} yet, so it was not checked"
    if is_hosted:
        return note(Check.STORE, text, "the first elastic run on its machine starts it")
    return warning(Check.STORE, text, f"start {start} before the job")


def _milliseconds(seconds: Duration) -> str:
    return f"{seconds * 1000:.1f} ms"

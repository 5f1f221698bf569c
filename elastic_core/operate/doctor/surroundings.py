"""What is around this machine for a run: names, addresses, the way to the store, ports. Measured and judged."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from elastic_core.operate.doctor.finding import Check, fault
from elastic_core.operate.doctor.network import (
    Address,
    Place,
    connected,
    judged_address,
    judged_connections,
    judged_name,
    judged_port,
    judged_reverse,
    looked_up_backwards,
    places_of,
    resolved,
)
from elastic_core.support.addresses import ip_address, own_address_towards
from elastic_core.support.bounded import Call, Late
from elastic_core.support.sockets import cannot_bind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elastic_core.clock import Clock, Duration
    from elastic_core.config import Settings
    from elastic_core.hooks.records import RendezvousBackendRecord
    from elastic_core.operate.doctor.finding import Finding
    from elastic_core.operate.doctor.network import Connected, Resolved

T = TypeVar("T")
_MARGIN: Duration = 2.0  # beyond a bound that a call keeps by itself
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Surroundings:
    """What was found.

    Args:
        places: the hosts of the endpoint; none if it is no network's.
        advertised: the address that this node would tell the others.
        somebody: whether anybody listens at the endpoint.
        is_hosted: whether the store is a node's, so that there is none before the job begins.
        may_host: whether that node would be this one.
    """

    places: tuple[Place, ...]
    advertised: str | None
    somebody: bool
    is_hosted: bool
    may_host: bool
    findings: tuple[Finding, ...]


def surroundings_of(
    settings: Settings, record: RendezvousBackendRecord | None, nodes: int, limit: Duration, clock: Clock
) -> Surroundings:
    """Look around, `limit` seconds at most for each thing; things of one kind are looked at side by side.

    Args:
        nodes: the most that there may be.
    """
    return _Look(settings, record, nodes, limit, clock).around()


@dataclass(frozen=True)
class _Look:
    settings: Settings
    record: RendezvousBackendRecord | None
    nodes: int
    limit: Duration
    clock: Clock

    def around(self) -> Surroundings:
        try:
            places = places_of(self.settings.rdzv_backend, self.settings.rdzv_endpoint, self.settings.rdzv_conf)
        except ValueError as error:
            told = f"expected host[:port] as --rdzv-endpoint, {error}"
            wrong = fault(Check.NAME, told, "correct --rdzv-endpoint")
            return Surroundings((), None, False, False, False, (wrong, *self._ports([], False)))
        names = self._side_by_side([Call(partial(self._resolved, place)) for place in places])
        addresses = [address for name in names for address in name.addresses]
        tried = self._side_by_side([Call(partial(self._connected, address)) for address in addresses])
        advertised = self._advertised(places, tried)
        somebody = any(not item.problem for item in tried)
        may_host = self.is_hosted and any(address.local for address in addresses)
        findings = [judged_name(name, self.nodes) for name in names]
        findings += judged_connections(tried, self.is_hosted)
        findings += self._ports(addresses if may_host else [], somebody)
        if places:
            findings += self._addresses(advertised, places, addresses)
        return Surroundings(places, advertised, somebody, self.is_hosted, may_host, tuple(findings))

    @property
    def is_hosted(self) -> bool:
        return self.settings.rdzv_backend == "static" or (self.record is not None and self.record.serve is not None)

    def _side_by_side(self, calls: list[Call[T]]) -> list[T]:
        return [call.result(self.limit + _MARGIN) for call in calls]

    def _resolved(self, place: Place) -> Resolved:
        return resolved(place, self.limit, self.clock)

    def _connected(self, address: Address) -> Connected:
        return connected(address, self.limit, self.clock)

    def _advertised(self, places: Sequence[Place], tried: Sequence[Connected]) -> str | None:
        """As the backends do: the address of the own end of the connection, or of the route there."""
        if self.settings.local_addr:
            return self.settings.local_addr
        if self.nodes == 1 or not places:
            return _LOOPBACK
        place = places[0]
        own = next((item.ours for item in tried if item.ours), None) or self._towards(place)
        address = ip_address((own or "").partition("%")[0])
        return place.host if address is not None and address.is_loopback and not place.is_loopback else own

    def _towards(self, place: Place) -> str | None:
        try:
            return Call(lambda: own_address_towards(place.host, place.port)).result(self.limit)
        except Late:
            return None

    def _addresses(
        self, advertised: str | None, places: Sequence[Place], met_at: Sequence[Address]
    ) -> Iterator[Finding]:
        own = () if advertised is None else self._resolved(Place(advertised, 0)).addresses
        at_loopback = all(place.is_loopback for place in places)
        yield judged_address(advertised, own, self.settings.local_addr is not None, self.nodes, at_loopback)
        if self.is_hosted:
            yield from self._reverse(met_at, own)

    def _reverse(self, met_at: Sequence[Address], own: Sequence[Address]) -> Iterator[Finding]:
        whose = {address.host: "the endpoint's address" for address in met_at}
        whose |= {address.host: "our address" for address in own}
        calls = {host: Call(partial(looked_up_backwards, host, self.limit, self.clock)) for host in whose}
        for host, call in calls.items():
            yield judged_reverse(call.result(self.limit + _MARGIN), whose[host])

    def _ports(self, host_at: Sequence[Address], somebody: bool) -> Iterator[Finding]:
        local = [address for address in host_at if address.local]
        if local and not somebody:
            sockaddr = local[0].sockaddr
            problem = cannot_bind(local[0].family, sockaddr)
            yield judged_port(Check.PORT, "the store that this machine would host", int(sockaddr[1]), problem)
        if self.settings.rdzv_backend == "local" and self.settings.master_port:
            port = self.settings.master_port
            yield judged_port(Check.PORT, "--master-port", port, cannot_bind(socket.AF_INET, ("0.0.0.0", port)))
        if self.settings.health_port and self.settings.health is not None:
            port, host = self.settings.health_port, self.settings.health_conf.get("host", _LOOPBACK)
            problem = cannot_bind(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))
            yield judged_port(Check.HEALTH_PORT, "--health-port", port, problem)

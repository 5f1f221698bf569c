"""Decides which node hosts the endpoint's store. Nodes try to bind the address instead of comparing names.

The node that binds the endpoint and reads back its own nonce hosts the store. On all other nodes, the port is in use or
the address is not local. A node reads the nonce through the endpoint, because the endpoint may lead to another machine.
This can happen if the address is translated, or if the name has several addresses.

If the name has addresses of several machines, each of these machines could try its own address first. Only one of them
may therefore host the store: the machine whose address comes first in an order common to all nodes. It hosts the store
only if no other machine already does. If the endpoint has several hosts, a new store starts at the first host, and only
if no other host answers.

If a store hosted by an agent is lost, any agent that can bind the same address may host the store again. Such an agent
is on the same machine. If that machine is alive but refuses connections, the node that would host a new store may host
the replacement. `elastic serve` writes no nonce, so agents never replace its stores.

A host that leaves hands the store over to another node (see `rendezvous.handover`). That node's server may be at any
address, and servers at the endpoint point to it.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from elastic_c10d.endpoint import Endpoint
from elastic_c10d.torch_store import allow_connections, bind_for, start_server
from elastic_core.plugin import (
    Address,
    RendezvousConnectionError,
    error_text,
    get_logger,
    is_local_address,
    is_loopback,
    peek,
    resolve_host,
    try_connect,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_c10d.torch_store import Store
    from elastic_core.plugin import PortReservation

_FORCED = "is_host, or the static backend and node rank 0, which is the default"
_NONCE_KEY = "elastic/host"
_PROBE = 2.0


def answers(address: Address) -> bool:
    """Return whether a program listens at this address."""
    return not try_connect(address, _PROBE)[0]


def resolved(endpoint: Endpoint, resolver: Callable[[str, int], list[Address]] = resolve_host) -> list[Address]:
    """Return the addresses of the endpoint's first host, or an empty list if the name is unknown."""
    try:
        return resolver(endpoint.host, endpoint.port)
    except socket.gaierror:
        return []


def in_order(address: Address) -> tuple[int, bytes]:
    """Return a sort key that is the same on every machine. IPv4 addresses come first, because every machine has
    IPv4."""
    packed = socket.inet_pton(address.family, address.host.partition("%")[0])
    return len(packed), packed


class HostElection:
    """Decides whether this node hosts the store, and manages this node's servers.

    Args:
        endpoint: the address of the store.
        is_host: whether this node must host the store (True) or must not (False). If None, it hosts the store if it can
            bind the address.
        max_nodes: number of nodes for which to size the server.
        probe: returns whether a program listens at another machine's address.
        reservation: the reservation of the endpoint's port, if this process has chosen the port.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        is_host: bool | None,
        max_nodes: int,
        probe: Callable[[Address], bool] = answers,
        reservation: PortReservation | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._reservation = reservation
        self._endpoint = endpoint
        self._is_host = is_host
        self._was_free_to_choose = is_host is None
        self._max_nodes = max_nodes
        self._probe = probe
        self._by_agent = False
        self._stopped = False
        self._nonce = secrets.token_hex(8).encode()
        self._server: Store | None = None
        self._place: Address | None = None
        self._taken_at: Endpoint | None = None
        self._kept: dict[Address, Store] = {}
        self._pointers: dict[Address, Store] = {}

    @property
    def server(self) -> Store | None:
        """This node's server, as a store. None if this node does not host the job's store."""
        return self._server

    @property
    def here(self) -> bool:
        """Whether this node hosts the job's store."""
        return self._server is not None

    @property
    def is_used(self) -> bool:
        """Whether another process has written to this node's server. A new server contains only the nonce."""
        return self._server is not None and self._server.num_keys() > 1

    def offer(self, places: Sequence[Sequence[Address]]) -> str | None:
        """Start a server if this node should host the store. Returns why another node should host the store, or None if
        there is nothing to report.

        Args:
            places: the addresses of each of the endpoint's hosts; empty for an unknown name.

        Raises:
            RendezvousConnectionError: this node must host the store but cannot.
        """
        if self._server is not None or self._is_host is False or self._stopped:
            return None
        firsts, later = places[0], list(chain.from_iterable(places[1:]))
        own = [address for address in firsts if is_local_address(address)]
        apart = [address for address in firsts if address not in own and not is_loopback(self._endpoint.host)]
        if not self._is_host:
            first = min((*own, *apart), key=in_order, default=None)
            if first not in own and (own or any(map(is_local_address, later))):
                named = first or f"{self._endpoint.host!r}, which has no address yet,"
                reason = "because it is the endpoint's first address; is_host=true overrides this"
                return f"{named} should host the store, {reason}"
            if own and any(map(self._probe, (*apart, *later))):
                return None
        if own or self._is_host:
            self._start(self._endpoint, own or firsts)
        return None

    def offer_at(self, lost: Address) -> bool:
        """Start a server at the lost store's address if an agent hosted the store and the address is local. If several
        agents try, only one of them can bind the address. Returns whether the host has to be chosen again."""
        if (
            not self._was_free_to_choose
            or not self._by_agent
            or self.here
            or self._stopped
            or not is_local_address(lost)
        ):
            return False
        self._start(self._endpoint if lost.port == self._endpoint.port else Endpoint(lost.host, lost.port), [lost])
        return True

    def offer_replacement(self, places: Sequence[Sequence[Address]], answers: list[str]) -> bool:
        """Start a new store if an agent on another machine hosted the lost one, and that machine still runs. Only the
        node that `offer` would have chosen at the first contact starts a store. Returns whether a server was started.
        Messages worth reporting are added to `answers`.

        Without this method, the job might remain without a store. New nodes leave hosting to the endpoint's first host,
        whose node may have joined while the store was elsewhere.
        """
        if not self._was_free_to_choose or not self._by_agent or self.here or not any(places):
            return False
        self._is_host = None
        left = self.offer(places)
        answers.extend([left] if left else [])
        return self.here

    def take_over(self, host: str) -> Endpoint | None:
        """Start a server for a store that another node hands over. The server uses the endpoint's port, or any free
        port if that port is in use. `host` is the address at which other nodes reach this machine. Returns the server's
        address, or None if this node must not or cannot host the store."""
        if not self._was_free_to_choose or self._stopped or (self.here and self._taken_at is None):
            return None
        for port in (self._endpoint.port, 0):
            at = Endpoint(self._endpoint.host if self._endpoint.is_loopback else host, port)
            self._start(at, resolved(at))
        if self._server is None or self._place is None:
            return None
        self._taken_at = Endpoint(at.host, self._place.port)
        return self._taken_at

    def cancel_take_over(self, unless: str = "") -> None:
        """Stop the server that `take_over` started, except one at the address `unless`."""
        if self._taken_at is not None and str(self._taken_at) != unless:
            self._end()

    def moved(self, at: Endpoint) -> None:
        """Record that the job's store is now at this address. If this node has a server at another address, that server
        keeps running until `stop`, for nodes that do not know the new address yet."""
        with self._lock:
            if self._server is not None and self._place is not None and at != self._taken_at:
                self._kept[self._place] = self._server
                self._server = self._taken_at = None

    def found_at(self, address: Address) -> None:
        """Record that the store was found at this address. The address may belong to a server that this node started
        before the store moved."""
        with self._lock:
            place = next(
                (place for place in self._kept if place.port == address.port and is_local_address(address)), None
            )
            if place is not None and self._server is None:
                self._server, self._place = self._kept.pop(place), place

    def serves_at(self, address: Address) -> bool:
        """Return whether this node hosts the job's store, and its server can be reached at this local address."""
        with self._lock:
            place = self._place if self.here else None
            return place is not None and place.port == address.port and is_local_address(address)

    def point(self, address: Address) -> bool:
        """Start a server at this address of the endpoint. The server will hold pointers that lead new nodes to the
        store. Returns False if the server already exists, or if the address is in use or is not local."""
        with self._lock:
            if address in self._pointers or self._stopped or not is_local_address(address):
                return False
            try:
                bound = bind_for(replace(self._endpoint, host=address.host, port=address.port, rest=()), [address])
            except OSError:
                return False
            self._pointers[address] = start_server(bound)
            return True

    def look(self, store: Store, only_if_unknown: bool) -> None:
        """Record whether an agent hosts this store, which is the case if the store contains a nonce. If no nonce is
        found, later connections check again, because the host may not have written it yet."""
        if not self.here and not (only_if_unknown and self._by_agent):
            self._by_agent = store.check([_NONCE_KEY])

    def confirm(self, store: Store) -> bool:
        """Return whether to use the store at the endpoint. If this node has started a server but another server
        answers, stop this node's server and return False.

        Raises:
            RendezvousConnectionError: the store belongs to another node, but this node must host it.
        """
        if self._server is None:
            return True
        if peek(store, _NONCE_KEY) == self._nonce:
            get_logger(endpoint=str(self._endpoint)).info("store hosted")
            return True
        self._end()
        if self._is_host:
            raise RendezvousConnectionError(
                f"this node must host the store ({_FORCED}), but another store answers at {self._endpoint}; set the "
                "endpoint to an address of this machine, remove is_host, or give this node another --node-rank"
            )
        self._is_host = False
        return False

    def stop(self) -> None:
        """Stop all servers of this node permanently. Idempotent."""
        with self._lock:
            self._stopped = True
            self._kept.clear()
            self._pointers.clear()
        self._end()
        if self._reservation is not None:
            self._reservation.release()

    def _end(self) -> None:
        with self._lock:
            self._server = self._taken_at = None

    def _start(self, at: Endpoint, addresses: Sequence[Address]) -> None:
        with self._lock:  # the thread that maintains pointers starts servers, too
            if self._server is None and not self._stopped:
                self._serve(at, addresses)

    def _serve(self, at: Endpoint, addresses: Sequence[Address]) -> None:
        try:
            bound = bind_for(at, addresses)
        except OSError as error:
            if self._is_host:
                raise RendezvousConnectionError(
                    f"this node must host the store ({_FORCED}), but cannot listen on {self._endpoint}: "
                    f"{error_text(error)}; `ss -ltnp` shows which programs are listening"
                ) from error
            return  # the address is in use by another process on this machine, or is not local
        allow_connections(self._max_nodes)
        if "torch" not in sys.modules:  # importing torch takes seconds
            get_logger(endpoint=str(self._endpoint)).info("starting the store")
        place = Address(bound.family, bound.getsockname())
        server = start_server(bound)
        server.set(_NONCE_KEY, self._nonce.decode())
        self._server, self._place = server, place

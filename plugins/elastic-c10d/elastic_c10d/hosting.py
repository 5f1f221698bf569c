"""Which node hosts the store of an endpoint: decided by trying, not by comparing names.

The node that can bind the endpoint's address and listen there hosts; all others, on the same machine too, find the port
taken or the address foreign. Whether the endpoint really leads to the server just started (it might be translated to
another machine's, or be one of several addresses of a name) is checked with a nonce that is read through the endpoint.

Where the name has addresses of several machines, each of these could host, and each might try its own address first. In
that case only the machine whose address is first, in an order that all agree on, hosts, and only if no other one does.

Where the endpoint names several hosts, a new store begins at the first one, and only if none answers at the others.

If a store that an agent hosted is lost, any agent that can bind its address, so one on the same machine, may host it
again; and if its machine lives and refuses, whoever would host a new one. `elastic serve` writes no nonce, so no agent
replaces its stores. A host that goes hands the store over (see `rendezvous.handover`): the server of the next host is
at any address, and pointers to it at the endpoint.
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
from elastic_c10d.server import allow_connections, bind_for, start_server
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

_NONCE_KEY = "elastic/host"
_PROBE = 2.0


def answers(address: Address) -> bool:
    """Whether a program listens there."""
    return not try_connect(address, _PROBE)[0]


def resolved(endpoint: Endpoint, resolver: Callable[[str, int], list[Address]] = resolve_host) -> list[Address]:
    """The addresses of its first host; none if the name is not known."""
    try:
        return resolver(endpoint.host, endpoint.port)
    except socket.gaierror:
        return []


def in_order(address: Address) -> tuple[int, bytes]:
    """A key that sorts addresses alike on every machine: IPv4 first, which every machine has, then by their bytes."""
    packed = socket.inet_pton(address.family, address.host.partition("%")[0])
    return len(packed), packed


class Hosting:
    """One node's part in deciding, until it is decided; then the server, if it is here.

    Args:
        endpoint: where the store belongs.
        is_host: True: it must be here; False: it must not; None: the node that can bind the address.
        max_nodes: the nodes to have room for.
        probe: whether a program listens at an address of another machine.
        reservation: of the endpoint's port, if it was chosen here.
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
        """Our server, as a store that can be used like any other."""
        return self._server

    @property
    def here(self) -> bool:
        """Whether a server of ours runs, with the store of the job."""
        return self._server is not None

    @property
    def is_used(self) -> bool:
        """Whether anybody has written into our server but this process: it holds the nonce alone before."""
        return self._server is not None and self._server.num_keys() > 1

    def offer(self, places: Sequence[Sequence[Address]]) -> str | None:
        """Start a server if this node has to. Returns why it does not, if that is worth reporting.

        Args:
            places: the addresses of each host of the endpoint, none where its name is not known.

        Raises:
            RendezvousConnectionError: it must be here, and cannot.
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
                return f"left to {named} to host, the first of the endpoint; is_host=true decides otherwise"
            if own and any(map(self._probe, (*apart, *later))):
                return None
        if own or self._is_host:
            self._start(self._endpoint, own or firsts)
        return None

    def offer_again(self, lost: Address) -> bool:
        """The store at this address is gone: start a server in its place, if the one that is gone was an agent's and
        its address is this machine's. Of several that try, one can bind. Returns whether our part has to be decided
        anew."""
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

    def offer_anew(self, places: Sequence[Sequence[Address]], answers: list[str]) -> bool:
        """The store is gone, and its machine is another one, which lives: as `offer` at the first contact, unless that
        store was no agent's. Without it nobody might host: newcomers leave it to the first host of the endpoint, where
        a node may be that came when the store was elsewhere. Returns whether a server was started; `answers` gets what
        else is worth reporting."""
        if not self._was_free_to_choose or not self._by_agent or self.here or not any(places):
            return False
        self._is_host = None
        left = self.offer(places)
        answers.extend([left] if left else [])
        return self.here

    def take_over(self, host: str) -> Endpoint | None:
        """Start a server for a store that another node hands over, on this machine, which others reach at this host: at
        the port of the endpoint, or at another one if that is taken. Returns where; None if it must not be here, or
        cannot."""
        if not self._was_free_to_choose or self._stopped:
            return None
        for port in (self._endpoint.port, 0):
            at = Endpoint(self._endpoint.host if self._endpoint.is_loopback else host, port)
            self._start(at, resolved(at))
        if self._server is None or self._place is None:
            return None
        self._taken_at = Endpoint(at.host, self._place.port)
        return self._taken_at

    def take_back(self) -> None:
        """End what `take_over` has started."""
        if self._taken_at is not None:
            self._end()

    def moved(self, at: Endpoint) -> None:
        """The nodes go there. A server of ours that is elsewhere stays until `stop`, for those that have not heard."""
        with self._lock:
            if self._server is not None and self._place is not None and at != self._taken_at:
                self._kept[self._place] = self._server
                self._server = self._taken_at = None

    def came_to(self, address: Address) -> None:
        """The store is there. That may be a server of ours from before it moved."""
        with self._lock:
            place = next(
                (place for place in self._kept if place.port == address.port and is_local_address(address)), None
            )
            if place is not None and self._server is None:
                self._server, self._place = self._kept.pop(place), place

    def serves_at(self, address: Address) -> bool:
        """Whether our server with the store of the job is there, by whichever of this machine's addresses."""
        with self._lock:
            place = self._place if self.here else None
            return place is not None and place.port == address.port and is_local_address(address)

    def point(self, address: Address) -> bool:
        """Start a server at this address of the endpoint, for what tells newcomers where the store is. False if there
        is one of ours already, or it is not this machine's, or taken."""
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
        """Learn whether an agent hosts the store that the endpoint leads to now. A client may be quicker than its
        host's nonce, so that connections made later look again if none was found."""
        if not self.here and not (only_if_unknown and self._by_agent):
            self._by_agent = store.check([_NONCE_KEY])

    def confirm(self, store: Store) -> bool:
        """Whether the store that the endpoint led to is to be used: always, if we have no server; else it must be ours.
        If it is another's, our server ends.

        Raises:
            RendezvousConnectionError: it must be ours.
        """
        if self._server is None:
            return True
        if peek(store, _NONCE_KEY) == self._nonce:
            get_logger(endpoint=str(self._endpoint)).info("store hosted")
            return True
        self._end()
        if self._is_host:
            raise RendezvousConnectionError(
                f"expected {self._endpoint} to lead to the store hosted here (is_host), found another one there; "
                "give the endpoint an address of this machine, or leave is_host out"
            )
        self._is_host = False
        return False

    def stop(self) -> None:
        """End the server, if there is one; there will be none any more. Idempotent."""
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
        with self._lock:  # the keeper of pointers starts servers, too
            if self._server is None and not self._stopped:
                self._serve(at, addresses)

    def _serve(self, at: Endpoint, addresses: Sequence[Address]) -> None:
        try:
            bound = bind_for(at, addresses)
        except OSError as error:
            if self._is_host:
                raise RendezvousConnectionError(
                    f"expected to host the store at {self._endpoint} (is_host), found that it cannot be had: "
                    f"{error_text(error)}; ss -ltnp shows who listens there"
                ) from error
            return  # somebody else's, on this machine; or not ours to take
        allow_connections(self._max_nodes)
        if "torch" not in sys.modules:  # its import takes seconds
            get_logger(endpoint=str(self._endpoint)).info("starting the store")
        place = Address(bound.family, bound.getsockname())
        server = start_server(bound)
        server.set(_NONCE_KEY, self._nonce.decode())
        self._server, self._place = server, place

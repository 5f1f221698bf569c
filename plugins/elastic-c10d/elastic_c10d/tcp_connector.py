"""Decides which node hosts the TCPStore of an endpoint, and connects to the store, wherever it is.

Nodes try to bind the endpoint's address instead of comparing names. The node that binds it and reads back its own nonce
hosts the store. On all other nodes, the port is in use or the address is not local. A node reads the nonce through the
endpoint, because the endpoint may lead to another machine. This can happen if the address is translated, or if the name
has several addresses.

If the name has addresses of several machines, each of these machines could try its own address first. Only one of them
may therefore host the store: the machine whose address comes first in an order common to all nodes. It hosts the store
only if no other machine already does. If the endpoint has several hosts, a new store starts at the first host, and only
if no other host answers.

If a store hosted by an agent is lost, any agent that can bind the same address may host the store again. Such an agent
is on the same machine. If that machine is alive but refuses connections, the node that would host a new store may host
the replacement. `elastic serve` writes no nonce, so agents never replace its stores.

A host that leaves hands the store over to another node (see `rendezvous.handover`). That node's server may be at any
address, and servers at the endpoint point to it.

Each connection resolves the names again and tries all addresses.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import sys
import threading
import weakref
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from elastic_c10d.connection import CONNECT_TIMEOUT, READ_TIMEOUT, StoreDialer
from elastic_c10d.endpoint import Endpoint, parse_endpoint
from elastic_c10d.torch_store import allow_connections, bind_for, start_server
from elastic_core.plugin import (
    POINTER_PATIENCE,
    REFUSED,
    Address,
    Backoff,
    RendezvousConnectionError,
    SystemClock,
    error_text,
    get_logger,
    is_local_address,
    is_loopback,
    later,
    peek,
    reached_at,
    resolve_host,
    seen_from_outside,
    try_connect,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elastic_c10d.connection import TorchConnection
    from elastic_core.plugin import Duration, Instant, PortReservation, Store

_FORCED = "is_host, or the static backend and node rank 0, which is the default"
_NONCE_KEY = "elastic/host"
_LISTENS: Duration = 2.0
_PROBE: Duration = 5.0
_PAUSES = Backoff(first=0.05, longest=1.0)
PATIENCE: Duration = 2.0
GRACE: Duration = 30.0


def listens(address: Address) -> bool:
    """Return whether a program listens at this address."""
    return not try_connect(address, _LISTENS)[0]


def resolved(
    endpoint: Endpoint,
    resolver: Callable[[str, int], list[Address]] = resolve_host,
    answers: list[str] | None = None,
) -> list[Address]:
    """Return the addresses of the endpoint's first host, or an empty list if the name is unknown. In that case, the
    reason is added to `answers`."""
    try:
        return resolver(endpoint.host, endpoint.port)
    except socket.gaierror as error:
        if answers is not None:
            answers.append(f"unknown name {endpoint.host!r} ({error.strerror})")
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
        probe: Callable[[Address], bool] = listens,
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

    def offer(self, places: Sequence[Sequence[Address]], answers: list[str]) -> None:
        """Start a server if this node should host the store.

        Args:
            places: the addresses of each of the endpoint's hosts; empty for an unknown name.
            answers: if another node should host the store, the reason is added to this list.

        Raises:
            RendezvousConnectionError: this node must host the store but cannot.
        """
        if self._server is not None or self._is_host is False or self._stopped:
            return
        firsts, others = places[0], list(chain.from_iterable(places[1:]))
        own = [address for address in firsts if is_local_address(address)]
        apart = [address for address in firsts if address not in own and not is_loopback(self._endpoint.host)]
        if not self._is_host:
            first = min((*own, *apart), key=in_order, default=None)
            if first not in own and (own or any(map(is_local_address, others))):
                named = first or f"{self._endpoint.host!r}, which has no address yet,"
                reason = "because it is the endpoint's first address; is_host=true overrides this"
                answers.append(f"{named} should host the store, {reason}")
                return
            if own and any(map(self._probe, (*apart, *others))):
                return
        if own or self._is_host:
            self._start(self._endpoint, own or firsts)

    def offer_at(self, lost: Address) -> bool:
        """Start a server at the lost store's address if an agent hosted the store and the address is local. If several
        agents try, only one of them can bind the address. Returns whether the host has to be chosen again."""
        if not self._was_free_to_choose or not self._by_agent or self.here or not is_local_address(lost):
            return False
        self._start(self._endpoint if lost.port == self._endpoint.port else Endpoint(lost.host, lost.port), [lost])
        return True

    def offer_replacement(self, places: Sequence[Sequence[Address]], answers: list[str]) -> bool:
        """Start a new store if an agent on another machine hosted the lost one, and that machine still runs. Only the
        node that `offer` would have chosen at the first contact starts a store. Returns whether a server was started.
        For `answers`, see `offer`.

        Without this method, the job might remain without a store. New nodes leave hosting to the endpoint's first host,
        whose node may have joined while the store was elsewhere.
        """
        if not self._was_free_to_choose or not self._by_agent or self.here or not any(places):
            return False
        self._is_host = None
        self.offer(places, answers)
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
                self._pointers[address] = start_server(bound)
            except OSError:
                return False
            return True

    def look(self, store: Store, only_if_unknown: bool) -> None:
        """Record whether an agent hosts this store, which is the case if the store contains a nonce. If no nonce is
        found, later connections check again, because the host may not have written it yet."""
        if self._was_free_to_choose and not self.here and not (only_if_unknown and self._by_agent):
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
            if self._server is not None or self._stopped:
                return
            try:
                bound = bind_for(at, addresses)
                allow_connections(self._max_nodes)
                if "torch" not in sys.modules:  # importing torch takes seconds
                    get_logger(endpoint=str(self._endpoint)).info("starting the store")
                place = Address(bound.family, bound.getsockname())
                server = start_server(bound)
            except OSError as error:
                if error.errno == errno.EMFILE:
                    advice = "close files or raise the limit (ulimit -n)"
                    raise RendezvousConnectionError(
                        f"this node cannot host the store at {self._endpoint}: {error_text(error)}; {advice}"
                    ) from error
                if self._is_host:
                    raise RendezvousConnectionError(
                        f"this node must host the store ({_FORCED}), but cannot listen on {self._endpoint}: "
                        f"{error_text(error)}; `ss -ltnp` shows which programs are listening"
                    ) from error
                return  # the address is in use by another process on this machine, or is not local
            server.set(_NONCE_KEY, self._nonce.decode())
            self._server, self._place = server, place


class TcpConnector:
    """Implements `store_connection.StoreConnector` and `handover.StoreMover` for a TCPStore.

    Args:
        endpoint: the address of the store.
        hosting: decides at the first connection whether this node hosts the store (default: it does not).
        patience: how many seconds to retry the first connection. Later connections, which follow a fault, try each
            address once.
        connect_timeout: time limit in seconds for a listener to answer as a TCPStore.
        read_timeout: time limit in seconds for the store to answer an operation.
        resolver: resolves a host and port to addresses.
        grace: how many seconds workers keep running after the failure timeout while the store's machine answers but the
            store does not. In that case, the store answers no node, so no node is considered lost.
        local_addr: the address at which other nodes reach this machine. If empty, the address is determined from
            connections.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        hosting: HostElection | None = None,
        patience: Duration = PATIENCE,
        connect_timeout: Duration = CONNECT_TIMEOUT,
        read_timeout: Duration = READ_TIMEOUT,
        resolver: Callable[[str, int], list[Address]] = resolve_host,
        grace: Duration = GRACE,
        local_addr: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._at: Endpoint | None = None
        self._local_addr = local_addr
        self._hosting = hosting or HostElection(endpoint, is_host=False, max_nodes=0)
        self._patience = patience
        self._connect_timeout = connect_timeout
        self._clock = SystemClock()
        self._resolve = resolver
        self._dialer = StoreDialer(read_timeout)
        self._grace = grace
        self._main: Callable[[], TorchConnection | None] = lambda: None  # weak, because its user owns it
        self._machine_answers = False
        self._refused: set[Address] = set()
        self._used_from: Instant | None = None  # when this node may begin to use the new store that it has started
        self._good: Address | None = None
        self._local = ""
        self._careful = False

    @property
    def where(self) -> str:
        return str(self._at or self._endpoint)

    @property
    def local_address(self) -> str:
        """The address at which other nodes reach this machine. Unless it was given, it is the local address of the
        connection to the store, and empty before the first connection."""
        return self._local_addr or self._local

    @property
    def hosts(self) -> bool:
        """Whether this process hosts the store."""
        return self._hosting.here

    @property
    def grace(self) -> Duration:
        """The grace time in seconds. It is zero if the store's machine does not answer, because this node may be
        disconnected."""
        main = self._main()
        answers = self._machine_answers or (main is not None and main.machine_answers())
        return self._grace if answers or self.hosts else 0.0

    def connect(self, aside: bool = False) -> TorchConnection:
        if aside and self._good is not None:
            return self._looked(self._connect_aside(self._good), only_if_unknown=True)
        if not aside and self._good is not None:
            return self._reconnect(self._good)
        deadline = later(self._clock.now(), 0.0 if aside else self._patience)
        attempts = 0
        while True:
            answers: list[str] = []
            found = self._once(answers, decides=not aside)
            if found is not None:
                return found
            attempts += 1
            if self._clock.now() >= deadline or self._dialer.stop.wait(_PAUSES.pause(attempts)):
                raise self._unreachable(answers)

    def close(self) -> None:
        self._dialer.close()
        self._hosting.stop()

    # -- moving the store, see `handover.StoreMover`

    @property
    def listed(self) -> bool:
        return not self._endpoint.rest or any(
            is_local_address(address) for address in chain.from_iterable(self._places())
        )

    def serve(self) -> tuple[str, TorchConnection] | None:
        at = self._hosting.take_over(self.local_address)
        if at is None:
            return None
        try:
            return str(at), self._dial(self._resolve(at.host, at.port)[0])
        except Exception:
            self.stop_serving()  # otherwise, this node would appear to host the store
            raise

    def stop_serving(self, unless: str = "") -> None:
        self._hosting.cancel_take_over(unless)

    def moved(self, where: str) -> None:
        self._at = parse_endpoint(where)
        self._good = next(iter(resolved(self._at, self._resolve)), self._good)
        self._hosting.moved(self._at)

    def connected_to(self, where: str) -> bool:
        return self._good in resolved(parse_endpoint(where), self._resolve)

    def at_the_endpoint(self) -> Iterator[TorchConnection]:
        for address in chain.from_iterable(self._places()):
            if self._hosting.serves_at(address):
                continue
            if self._hosting.point(address) or not try_connect(address, _PROBE)[0]:
                with contextlib.suppress(RendezvousConnectionError):
                    yield self._dial(address)

    def _places(self, answers: list[str] | None = None) -> list[list[Address]]:
        return [resolved(one, self._resolve, answers) for one in self._endpoint.each]

    def _connect_aside(self, address: Address) -> TorchConnection:
        """Open an additional connection to the main connection's address. The first additional connection needs neither
        a probe nor a thread. Later ones do, because they replace a lost connection, and the store may be lost as
        well."""
        careful, self._careful = self._careful, True
        fault = try_connect(address, min(_PROBE, self._connect_timeout))[0] if careful else ""
        if fault:
            raise self._unreachable([f"{address}: {fault}"])
        return self._dial(address, patiently=not careful)

    def _reconnect(self, lost: Address) -> TorchConnection:
        """Open a new main connection after a fault.

        If an agent on this machine hosted the lost store, this node tries to host the store immediately, because
        workers keep running only for the grace time.

        If the store was on another machine that now refuses connections, either the store's process has ended, or the
        store has moved while this node was disconnected. In that case, this node starts a new store, but does not use
        it yet. First, it waits for as long as a living host would need to write a pointer to the moved store. The wait
        ends early if other nodes have connected to the new store, because they would otherwise consider this node lost.
        """
        answers: list[str] = []
        has_started_one = self._used_from is not None
        if self._used_from is not None and self._clock.now() < self._used_from and not self._hosting.is_used:
            raise self._unreachable(
                ["this node has started a new store, but first waits for a pointer to an existing one"]
            )
        self._used_from = None
        found = self._once(answers, decides=has_started_one)
        if found is None:
            if lost in self._refused:  # the store ended while this node was taking it over
                self._hosting.cancel_take_over(unless=self.where)
            if self._hosting.offer_at(lost):
                found = self._once(answers, decides=True)
            elif lost in self._refused and self._hosting.offer_replacement(self._places(), answers):
                self._used_from = later(self._clock.now(), POINTER_PATIENCE)
        if found is None:
            raise self._unreachable(answers)
        return found

    def _once(self, answers: list[str], decides: bool) -> TorchConnection | None:
        moved = [] if self._at is None else resolved(self._at, self._resolve)
        places = self._places(answers)
        if decides and any(places):
            self._hosting.offer(places, answers)
        for address in dict.fromkeys(chain(moved, *places)):
            found = self._try(address, answers, decides)
            if found is not None:
                self._at = self._at if address in moved else None
                return found
        return None

    def _try(self, address: Address, answers: list[str], decides: bool) -> TorchConnection | None:
        fault, local = try_connect(address, min(_PROBE, self._connect_timeout))
        if self._good in (None, address):  # other hosts of the endpoint prove nothing about the store's machine
            self._machine_answers = fault in ("", REFUSED)
        self._refused = (self._refused - {address}) | ({address} if fault == REFUSED else set())
        if fault or self._dialer.stop.is_set():
            answers.append(f"{address}: {fault or 'this side was closed'}")
            return None
        try:
            found = self._dial(address)
        except RendezvousConnectionError as error:
            answers.append(f"{address}: {error}")
            return None
        if not decides or self._confirmed(found, address, answers):
            self._good, self._local, self._careful = address, self._outside(local), False
            self._main, self._machine_answers = weakref.ref(found), False
            self._hosting.found_at(address)
            return self._looked(found)
        return None

    def _outside(self, local: str) -> str:
        """Return the address at which other machines see the given local address."""
        if self._endpoint.is_open and is_loopback(local):
            return reached_at()
        return seen_from_outside(local, self._endpoint.host)

    def _looked(self, found: TorchConnection, only_if_unknown: bool = False) -> TorchConnection:
        """Record whether an agent hosts the store, and return the connection. Errors are ignored, because the next
        operation reports them."""
        with contextlib.suppress(RuntimeError):
            self._hosting.look(found.store, only_if_unknown)
        return found

    def _confirmed(self, found: TorchConnection, address: Address, answers: list[str]) -> bool:
        try:
            if self._hosting.confirm(found.store):
                return True
            # Another node's store has answered, so ours was stopped. The connection may still lead to ours.
            answers.append(f"{address}: leads to another host's store")
        except RuntimeError as error:
            answers.append(f"{address}: {str(error).splitlines()[0]}")
        found.release()
        return False

    def _dial(self, address: Address, patiently: bool = False) -> TorchConnection:
        return self._dialer.dial(address.scoped_host, address.port, str(address), self._connect_timeout, patiently)

    def _unreachable(self, answers: list[str]) -> RendezvousConnectionError:
        reasons = "; ".join(dict.fromkeys(answers)) or "this side was closed"
        return RendezvousConnectionError(
            f"the rendezvous store at {self._endpoint} cannot be reached ({reasons}); check that --rdzv-endpoint "
            "is correct, that its host is up, and that no firewall blocks the connection"
        )

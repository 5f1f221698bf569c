"""Connects to the TCPStore at an endpoint, or at the address to which the store has moved. Each connection resolves the
names again and tries all addresses."""

from __future__ import annotations

import contextlib
import socket
import weakref
from itertools import chain
from typing import TYPE_CHECKING

from elastic_c10d.connection import CONNECT_TIMEOUT, READ_TIMEOUT, StoreDialer
from elastic_c10d.endpoint import parse_endpoint
from elastic_c10d.hosting import resolved
from elastic_core.plugin import (
    POINTER_PATIENCE,
    REFUSED,
    Backoff,
    RendezvousConnectionError,
    SystemClock,
    is_local_address,
    is_loopback,
    later,
    reached_at,
    resolve_host,
    seen_from_outside,
    try_connect,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_c10d.connection import TorchConnection
    from elastic_c10d.endpoint import Endpoint
    from elastic_c10d.hosting import HostElection
    from elastic_core.plugin import Address, Duration, Instant

_PROBE: Duration = 5.0
_PAUSES = Backoff(first=0.05, longest=1.0)
PATIENCE: Duration = 2.0
GRACE: Duration = 30.0


class TcpConnector:
    """Implements `store_connection.StoreConnector` and `handover.StoreMover` for a TCPStore.

    Args:
        endpoint: the address of the store.
        hosting: decides at the first connection whether this node hosts the store. If None, this node does not host the
            store.
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
        self._hosting = hosting
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
        return self._hosting is not None and self._hosting.here

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
        if self._hosting is not None:
            self._hosting.stop()

    # -- moving the store, see `handover.StoreMover`

    @property
    def listed(self) -> bool:
        return not self._endpoint.rest or any(
            is_local_address(address) for address in chain.from_iterable(self._places())
        )

    def serve(self) -> tuple[str, TorchConnection] | None:
        at = None if self._hosting is None else self._hosting.take_over(self.local_address)
        if at is None:
            return None
        try:
            return str(at), self._dial(self._resolve(at.host, at.port)[0])
        except Exception:
            self.stop_serving()  # otherwise, this node would appear to host the store
            raise

    def stop_serving(self, unless: str = "") -> None:
        if self._hosting is not None:
            self._hosting.cancel_take_over(unless)

    def moved(self, where: str) -> None:
        self._at = parse_endpoint(where)
        self._good = next(iter(resolved(self._at, self._resolve)), self._good)
        if self._hosting is not None:
            self._hosting.moved(self._at)

    def connected_to(self, where: str) -> bool:
        return self._good in resolved(parse_endpoint(where), self._resolve)

    def at_the_endpoint(self) -> Iterator[TorchConnection]:
        for address in chain.from_iterable(self._places()):
            if self._hosting is None or self._hosting.serves_at(address):
                continue
            if self._hosting.point(address) or not try_connect(address, _PROBE)[0]:
                with contextlib.suppress(RendezvousConnectionError):
                    yield self._dial(address)

    def _places(self) -> list[list[Address]]:
        return [resolved(one, self._resolve) for one in self._endpoint.each]

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
        if self._used_from is not None:
            if self._clock.now() < self._used_from and not (self._hosting and self._hosting.is_used):
                raise self._unreachable(
                    ["this node has started a new store, but first waits for a pointer to an existing one"]
                )
            self._used_from = None
            found = self._once(answers, decides=True)
        else:
            found = self._once(answers, decides=False)
        if found is None and self._hosting is not None:
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
        places = [self._looked_up(one, answers) for one in self._endpoint.each]
        if decides and self._hosting is not None and any(places):
            left = self._hosting.offer(places)
            answers.extend([left] if left else [])
        for address in dict.fromkeys(chain(moved, *places)):
            found = self._try(address, answers, decides)
            if found is not None:
                self._at = self._at if address in moved else None
                return found
        return None

    def _looked_up(self, one: Endpoint, answers: list[str]) -> list[Address]:
        try:
            return self._resolve(one.host, one.port)
        except socket.gaierror as error:
            answers.append(f"unknown name {one.host!r} ({error.strerror})")
            return []

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
            if self._hosting is not None:
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
        if self._hosting is not None:
            with contextlib.suppress(RuntimeError):
                self._hosting.look(found.store, only_if_unknown)
        return found

    def _confirmed(self, found: TorchConnection, address: Address, answers: list[str]) -> bool:
        try:
            if self._hosting is None or self._hosting.confirm(found.store):
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

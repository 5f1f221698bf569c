"""Handover: the node that hosts the store leaves, and another node takes over the store with all its data.

1. The host ends the epoch. In place of the next version of the state, it writes a marker with the keys of its heirs,
   the nodes that may take over. The marker wakes all nodes that wait for a version, and no version can follow it.
2. The first heir serves a new store, copies the newest state into it, and writes the new address into the old store. If
   the first heir does not do this in time, the next heir does it. Only one of them can write the address.
3. All nodes, including the old host, connect to the new store and announce themselves in its new epoch. Then the old
   host leaves.
4. The new host leaves pointers at the endpoint, so that new nodes find the store. If an address there belongs to the
   new host's machine and is free, the new host serves a pointer store at that address. Otherwise, it writes a marker
   into the store that another node has started at the endpoint. If the new host is lost and a node on its machine
   starts the store again at the new address, that node does the same.

If no heir takes over in time, the host records that the store stays where it is, and the nodes begin a new epoch in it
with the newest state. The nodes also do so if a marker leads back to the same store, or if it leads to an address where
no store answers, and that store's host has stopped checking its pointer here. The state may then be old.

Such a host may merely have been cut off. In that case, it later finds that nodes have continued at the endpoint without
it. It then ends its own epoch with a marker that leads to the endpoint. If those nodes' store has moved as well, both
hosts replace each other's pointer, and the one with the higher address ends its epoch.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Protocol

from elastic_core.clock import Backoff
from elastic_core.interfaces.backend import ForeignStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.versions import Keys, Versions, add, create, epoch_named, new_epoch, peek, point
from elastic_core.support.sockets import split_host_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import Seal
    from elastic_core.rendezvous.store_connection import StoreConnection

HEIR_PATIENCE: Duration = 0.5  # time for the previous heir to take over
STAYS = "stays"
"""Takes the place of the new address if the store stays where it is. The value is not empty, because stores do not
distinguish an empty value from a missing one when they compare."""
POINTER_PATIENCE: Duration = 12.0  # seconds without a pointer check after which a store's host is considered gone
_PAUSES = Backoff(first=0.05, longest=1.0)  # well below the last call, in which a new host waits for other nodes
_LAST: Duration = 1.0
_NEVER = "elastic/never"  # a key that no node writes


class StoreMoved(Exception):
    """The store has moved to another address."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class StoreMover(Protocol):
    """A connector whose store may move."""

    @property
    def listed(self) -> bool:
        """Whether the endpoint names this machine, so that new nodes look for the store here."""

    def serve(self) -> tuple[str, StoreConnection] | None:
        """Serve a new store in this process. Returns its address and a connection, or None if this process may not or
        cannot serve a store. Idempotent."""

    def stop_serving(self, unless: str = "") -> None:
        """Stop the store that `serve` started, because the job's store is elsewhere. A store at the address `unless`
        keeps running. Idempotent."""

    def moved(self, where: str) -> None:
        """Connect to `where` from now on. If no store answers there, connect to the endpoint. Raises ConfigurationError
        if `where` is not an address."""

    def connected_to(self, where: str) -> bool:
        """Return whether the current connection leads to `where`."""

    def at_the_endpoint(self) -> Iterable[StoreConnection]:
        """Return connections to the stores at the endpoint, except the current store. If an address of the endpoint
        belongs to this machine and is free, start a store there first. A store that was started in this way is returned
        only once, and stops on `close`."""


def turn(heirs: Sequence[str], own: Iterable[str], listed: bool) -> int | None:
    """Return how many turns the node with the keys `own` waits before it takes over, or None if it is not an heir.
    Nodes that the endpoint lists (`listed`) come first, because new nodes look for the store there."""
    place = next((place for place, key in enumerate(heirs) if key in set(own)), None)
    return place if place is None or listed else place + len(heirs)


class Pointer:
    """Maintains pointers at the endpoint to the store that this process serves elsewhere. A thread checks the pointers
    periodically and whenever a store at the endpoint stops. The thread runs until `close`.

    Args:
        where: the address of the store.

    Attributes:
        overtaken_at: the address of a store in which other nodes have agreed on a different state; empty if there is
            none. The store is at the endpoint, or another process keeps a pointer to it there. The thread ends when it
            finds such a store.
    """

    def __init__(self, mover: StoreMover, run_id: str, seal: Seal, where: str) -> None:
        self.overtaken_at = ""
        self.where = where
        self._mover, self._run_id, self._seal = mover, run_id, seal
        self._closed = threading.Event()
        self._pointing = threading.Lock()
        self._logged = False
        self._replaced: dict[str, str] = {}  # the last pointer to another store, by the place where it was found
        threading.Thread(target=self._keep, name="rendezvous-pointer", daemon=True).start()

    def close(self) -> None:
        """Stop writing pointers. Waits at most a second for a write that is in progress. Idempotent."""
        self._closed.set()
        if self._pointing.acquire(timeout=_LAST):
            self._pointing.release()

    def _keep(self) -> None:
        looks = 0
        while not self._closed.is_set():
            looks += 1
            connections: list[StoreConnection] = []
            try:
                connections.extend(self._mover.at_the_endpoint())
            except Exception as error:  # noqa: BLE001 - for example, too many files are open; try again later
                get_logger().debug("endpoint does not redirect", endpoint=self.where, reason=str(error))
            for connection in connections:
                with self._pointing:
                    if not self._closed.is_set():
                        self._point(connection)
            self._rest(connections, _PAUSES.pause(looks))
            for connection in connections:
                connection.release()

    def _point(self, connection: StoreConnection) -> None:
        try:
            epoch = epoch_named(create(connection.store, Keys(self._run_id).id, new_epoch()))
            keys = Keys(self._run_id, epoch)
            pointer = peek(connection.store, keys.moved)
            found = None if pointer is None else self._seal.opened(keys.moved, pointer)
            if found is not None and self._is_rival(found.decode(errors="replace"), connection.where):
                self._yield_to(found.decode())
                return
            pointed = point(connection.store, keys, self._seal, self.where)
            add(connection.store, keys.pointed, 1)
            if not pointed:
                self._check_other_state(connection, Versions(keys, self._seal, observes=True))
        except Exception as error:  # noqa: BLE001 - that store has stopped or is corrupt, so try again later
            get_logger().debug("endpoint does not redirect", endpoint=connection.where, reason=str(error))

    def _is_rival(self, found: str, place: str) -> bool:
        """Return whether this host must yield to the host of the store at `found`, because that host has put its
        pointer back after this process had replaced it. The one with the higher address yields."""
        if found == self.where:
            return False
        is_back, self._replaced[place] = self._replaced.get(place) == found, found
        with contextlib.suppress(OSError, ValueError):  # that store does not answer
            if is_back and found < self.where:
                socket.create_connection(split_host_port(found, 0), _LAST).close()
                return True
        return False

    def _check_other_state(self, connection: StoreConnection, versions: Versions) -> None:
        try:
            found = versions.newest(connection.store)
            if found is None:
                return
            if not self._seal.is_others(found[0]):
                self._yield_to(connection.where)
                return
            reason = "the nodes at the endpoint have a secret, but this store's nodes do not"
        except ForeignStateError as error:
            reason = str(error)
        if not self._logged:
            self._logged = True
            get_logger().warning("job split", endpoint=connection.where, moved=self.where, reason=reason)

    def _yield_to(self, where: str) -> None:
        self.overtaken_at = where
        self._closed.set()
        reason = "this store's nodes are joining the nodes of the other store"
        get_logger().warning("job split", endpoint=where, moved=self.where, reason=reason)

    def _rest(self, connections: Sequence[StoreConnection], pause: Duration) -> None:
        """Wait for `pause` seconds, or until the store at the first of these connections stops."""
        try:
            if connections:
                connections[0].fetch(_NEVER, pause, self._closed)
            else:
                self._closed.wait(pause)
        except Exception:  # noqa: BLE001 - the store has stopped
            return

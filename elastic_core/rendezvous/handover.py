"""Handing the store over: its host goes, and another node serves it from then on, with all that was accepted.

1. The host ends the epoch: in the place of the next version of the state it writes a marker with the keys of its heirs,
   the nodes that may take over. No version can follow, and whoever waits for the state wakes.
2. The first heir serves a new store, and writes the newest state into it. Then it says in the old store where that is.
   If it does not in time, the next heir does the same. Only one of them can say so.
3. All nodes go there, the old host too, and announce themselves. Tokens and entries are of a new epoch, as in a store
   that begins anew, but nothing is missing. The old host waits for the others, and goes.
4. At the endpoint the new host leaves a pointer, wherever it can: a store of its own, if the address is its machine's
   and free; otherwise a marker in the store that somebody has begun there. Newcomers follow it.

If no heir takes over in time the host says that the store stays, and the nodes begin a new epoch in it. So they do
where a marker leads nowhere: back to where it stands, or to a place where nobody answers and whose host looks here no
more. That host may only have been cut off. When it finds that nodes have gone on at the endpoint without it, it ends
its own epoch by a marker that leads there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from elastic_core.interfaces.backend import SpoiltStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.versions import Keys, Versions, add, create, epoch_named, new_epoch, point
from elastic_core.support.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import Seal
    from elastic_core.rendezvous.store_connection import StoreConnection

HEIR_PATIENCE: Duration = 0.5  # for the heir before to take over
POINTER_PATIENCE: Duration = 12.0  # for the host of a store to look again where it has left a pointer
_PAUSES = Backoff(first=0.05, longest=5.0)
_LAST: Duration = 1.0
_NEVER = "elastic/never"  # a key that nobody writes


class Moved(Exception):
    """The store is elsewhere."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class StoreMover(Protocol):
    """What a connector can do whose store may move."""

    @property
    def listed(self) -> bool:
        """Whether newcomers look for the store on this machine, because the endpoint names it."""
        ...

    def serve(self) -> tuple[str, StoreConnection] | None:
        """Serve a new store in this process. Returns where the others reach it, and a connection; None if it must not
        be here, or cannot. Idempotent."""
        ...

    def serve_no_more(self) -> None:
        """End what `serve` has begun: another node was quicker."""
        ...

    def moved(self, where: str) -> None:
        """Connect there from now on; and to the endpoint, if nobody answers there. Raises ConfigurationError: it is no
        such place."""
        ...

    def leads_to(self, where: str) -> bool:
        """Whether the connection of now is to there."""
        ...

    def at_the_endpoint(self) -> Iterable[StoreConnection]:
        """Connections to stores at the endpoint other than the one where it is now. Where an address is this machine's
        and free, one is begun here first; such a one is returned once, and ends with `close`."""
        ...


def turn(heirs: Sequence[str], own: Iterable[str], listed: bool) -> int | None:
    """After how many others a node takes over, which has these keys; None if it is no heir. Those at the endpoint come
    first, since newcomers look for the store there."""
    place = next((place for place, key in enumerate(heirs) if key in set(own)), None)
    return place if place is None or listed else place + len(heirs)


class Pointer:
    """Keeps pointers at the endpoint, in a thread, from when this process serves the store elsewhere until `close`. It
    looks there again when a store at the endpoint ends, and now and then: nobody tells when one begins.

    Args:
        where: the store is now.

    Attributes:
        overtaken_at: the store at the endpoint in which nodes have agreed on a state of their own; empty: none. It
            looks no more then.
    """

    def __init__(self, mover: StoreMover, run_id: str, seal: Seal, where: str) -> None:
        self.overtaken_at = ""
        self._mover, self._run_id, self._seal, self._where = mover, run_id, seal, where
        self._closed = threading.Event()
        self._pointing = threading.Lock()
        self._told = False
        threading.Thread(target=self._keep, name="rendezvous-pointer", daemon=True).start()

    def close(self) -> None:
        """No store is pointed at from now on. Waits for one that just is, a second at most. Idempotent."""
        self._closed.set()
        if self._pointing.acquire(timeout=_LAST):
            self._pointing.release()

    def anew(self) -> Pointer:
        """Another one to the same place, after `close`."""
        return Pointer(self._mover, self._run_id, self._seal, self._where)

    def _keep(self) -> None:
        looks = 0
        while not self._closed.is_set():
            looks += 1
            standing = list(self._mover.at_the_endpoint())
            for connection in standing:
                self._point(connection)
            self._rest(standing, _PAUSES.pause(looks))
            for connection in standing:
                connection.release()

    def _point(self, connection: StoreConnection) -> None:
        with self._pointing:
            if not self._closed.is_set():
                self._point_at(connection)

    def _point_at(self, connection: StoreConnection) -> None:
        try:
            epoch = epoch_named(create(connection.store, Keys(self._run_id).id, new_epoch()))
            keys = Keys(self._run_id, epoch)
            pointed = point(connection.store, keys, self._seal, self._where)
            add(connection.store, keys.pointed, 1)
            if not pointed:
                self._meets_others(connection, Versions(keys, self._seal, observes=True))
        except Exception as error:  # noqa: BLE001 - it ended meanwhile, or is spoilt: a later look tells
            get_logger().debug("store not pointed at", endpoint=connection.where, reason=str(error))

    def _meets_others(self, connection: StoreConnection, versions: Versions) -> None:
        reason = "the nodes of this store join those"
        try:
            found = versions.newest(connection.store)
            if found is None:
                return
            if self._seal.is_others(found[0]):
                reason = "those have a secret, and the nodes of this store have none"
            else:
                self.overtaken_at = connection.where
                self._closed.set()
        except SpoiltStateError as error:
            reason = str(error)
        if not self._told:
            self._told = True
            get_logger().warning("job split", endpoint=connection.where, moved=self._where, reason=reason)

    def _rest(self, standing: Sequence[StoreConnection], pause: Duration) -> None:
        """For so long, or until the first of these ends."""
        try:
            if standing:
                standing[0].fetch(_NEVER, pause, self._closed)
            else:
                self._closed.wait(pause)
        except Exception:  # noqa: BLE001 - it has ended, so there is something to do
            return

"""Where the workers of a round find their store, and how the nodes of the round learn it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.support.sockets import PortReservation

if TYPE_CHECKING:
    from elastic_core.interfaces.store import Store

_ADDRESS_KEY = "MASTER_ADDR"
_PORT_KEY = "MASTER_PORT"


@dataclass(frozen=True)
class RendezvousStoreInfo:
    """`MASTER_ADDR` and `MASTER_PORT`."""

    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Store, local_addr: str | None = None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Rank 0 writes into the round's store where the workers' store will be, and all others wait for that (for as
        long as the store waits for a key).

        Args:
            local_addr: rank 0's address; its fully qualified host name when None.
            server_port: the port of a server that rank 0 runs already; None for a free one. A free port is not held:
                where that matters, hold one (`elastic_core.port`) and give it here.

        Raises:
            RendezvousConnectionError and any other error of the store.
        """
        if rank == 0:
            store.set(_ADDRESS_KEY, local_addr or socket.getfqdn())
            store.set(_PORT_KEY, str(_free_port() if server_port is None else server_port))
        return RendezvousStoreInfo(store.get(_ADDRESS_KEY).decode(), int(store.get(_PORT_KEY)))


def _free_port() -> int:
    reservation = PortReservation()
    reservation.release()
    return reservation.port

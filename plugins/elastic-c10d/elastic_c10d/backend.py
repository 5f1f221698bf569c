"""The `c10d` backend, which keeps rendezvous data in a torch store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_c10d.connector import as_connector
from elastic_c10d.tcp_connector import TcpConnector
from elastic_core.plugin import HOLE_PATIENCE, StoreBackend

if TYPE_CHECKING:
    from elastic_c10d.torch_store import Store
    from elastic_core.plugin import Clock, Duration, StoreConnector


class C10dRendezvousBackend(StoreBackend):
    """A rendezvous backend over any torch store. See `StoreBackend`.

    Args:
        store: a TCPStore, FileStore or HashStore, which may be wrapped in PrefixStores, or a `StoreConnector`. The
            backend closes a connector, but the caller still owns a store.
        run_id: the job's run id; jobs with different ids are isolated from each other within a store.
    """

    def __init__(
        self,
        store: Store | StoreConnector,
        run_id: str,
        clock: Clock | None = None,
        hole_patience: Duration = HOLE_PATIENCE,
        observes: bool = False,
    ) -> None:
        connector = as_connector(store)
        mover = connector if isinstance(connector, TcpConnector) else None
        super().__init__(connector, run_id, "c10d", clock, hole_patience, observes, mover)

"""The rendezvous handler, with the interface that the agent and torch's users expect."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from elastic_etcd.client.errors import EtcdError
from elastic_etcd.client.values import Delete, Transaction, end_of

from elastic_core.plugin import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    WorkersStore,
)
from elastic_etcd_legacy.barrier import Barrier
from elastic_etcd_legacy.document import KeepAlive
from elastic_etcd_legacy.table import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_etcd.client.client import EtcdClient

    from elastic_core.plugin import Clock, Duration, Store
    from elastic_etcd_legacy.settings import LegacySettings

    StoreFactory = Callable[[EtcdClient, str, int], Store]

_PATIENCE: Duration = 5.0  # seconds that `shutdown` waits for `next_rendezvous` to return


class EtcdRendezvousHandler(RendezvousHandler):
    """Forms rounds with the older protocol. The README lists its limits.

    Args:
        client: the etcd client, which this handler closes.
        address: the host name or IP address that this node advertises for the workers' store.
        store: creates a round's store from the client, a key prefix, and the ID of the lease for its keys.
        name: this node's name in the stored document, for debugging.
        clock: a clock for tests (default: the system clock).
        backend: the name under which the program registered this backend.
    """

    def __init__(
        self,
        client: EtcdClient,
        settings: LegacySettings,
        address: str,
        store: StoreFactory,
        name: str = "node",
        clock: Clock | None = None,
        backend: str = "etcd-legacy",
    ) -> None:
        self._client = client
        self._backend = backend
        self._settings = settings
        self._address = address
        self._store = store
        self._barrier = Barrier(client, settings, self._reserve, name, clock)
        self._workers = WorkersStore()
        self._stores: list[tuple[str, Store]] = []
        self._released = False
        self._left = False

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._settings.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        with self._our_errors():
            joined = self._barrier.enter()
            if joined.rank == 0:
                self._workers.serve()
            else:
                self._workers.release()  # the result of an earlier round
            store = self._round_store(joined.version)
        where = RendezvousStoreInfo(joined.host.address, joined.host.port)
        return RendezvousInfo(store, joined.rank, joined.world_size, where)

    @property
    def use_agent_store(self) -> bool:
        return self._workers.hosted_by_agent

    def is_closed(self) -> bool:
        """Return whether the job was closed. Raises RendezvousConnectionError."""
        with self._our_errors():
            document = self._barrier.look().document
            return document is not None and document.status is Status.CLOSED

    def set_closed(self) -> None:
        """Close the job. Raises RendezvousConnectionError."""
        with self._our_errors():
            self._barrier.close_rendezvous()

    def num_nodes_waiting(self) -> int:
        """Return how many nodes are waiting for a new round. The result is 1 if this round has lost a member, so that
        its members form a new round. The number comes from the watch, without a request to etcd. Raises
        RendezvousConnectionError while the watch is interrupted."""
        with self._our_errors():
            return self._barrier.nodes_waiting()

    def shutdown(self) -> bool:
        if not self._released:
            self._released = True
            for _, store in self._stores:
                _close(store)
            self._left = self._barrier.stop(_PATIENCE)
            self._workers.release()
            self._client.close()
        return self._left

    def _round_store(self, version: int) -> Store:
        """Open this round's store, and delete the store from two rounds ago, which no worker can still be reading."""
        if len(self._stores) > 1:
            prefix, old = self._stores.pop(0)
            _close(old)
            with contextlib.suppress(EtcdError):  # if this fails, the keys disappear with the lease
                self._client.transact(Transaction((), (Delete(prefix.encode(), end_of(prefix.encode())),)))
        prefix = self._settings.keys.store(version)
        store = self._store(self._client, prefix, self._barrier.run_lease)
        self._stores.append((prefix, store))
        return store

    def _reserve(self) -> KeepAlive:
        """Reserve a port for the workers' store, because every round needs a new one."""
        return KeepAlive(self._address, self._workers.reserve(self._address))

    @contextlib.contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except EtcdError as error:
            raise RendezvousConnectionError(str(error)) from error


def _close(store: Store) -> None:
    close = getattr(store, "close", None)
    if close is not None:
        close()

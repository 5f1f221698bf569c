"""Creates the stores of each round: the workers' store, hosted on rank 0's node, and a store that the members share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_c10d.torch_store import distributed, lazy_store
from elastic_core.plugin import MadeStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_c10d.torch_store import Store
    from elastic_core.plugin import StoreConnector, WorkersStore


def round_stores(
    connector: StoreConnector, run_id: str, address: Callable[[], str], workers: WorkersStore, host: str = ""
) -> MadeStores:
    """Return an object that creates each round's stores. The members' store is the rendezvous store with a key prefix
    for the round. It connects on first use.

    Args:
        connector: connects to the rendezvous store.
        run_id: the job's run id.
        address: returns the address that this node advertises. Called only when needed, because finding the address may
            require a connection.
        workers: the node's workers' store.
        host: see `MadeStores`.
    """

    def members_store(name: str) -> Store:
        torchs = distributed()
        shared = connector.connect(aside=True).store
        if isinstance(shared, torchs.FileStore):
            shared = torchs.FileStore(shared.path, -1)  # a separate connection, so that the members can set its timeout
        store: Store = torchs.PrefixStore(f"elastic/{run_id}/round/{name}", shared)
        return store

    return MadeStores(lambda name: lazy_store(lambda: members_store(name)), address, workers, host)

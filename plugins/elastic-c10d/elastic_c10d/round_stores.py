"""What every round gets: a server for the workers' store on rank 0's node, and a store that only members share."""

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
    """The members' store is the rendezvous store below a prefix that names the round, over a connection made when it is
    first used.

    Args:
        connector: to the rendezvous store.
        run_id: the job.
        address: the address that this node advertises; asked for when it is needed, since it may take a connection
            to know.
        workers: the node's place for the workers' store.
        host: see `MadeStores`.
    """

    def members_store(name: str) -> Store:
        torchs = distributed()
        shared = connector.connect(aside=True).store
        if isinstance(shared, torchs.FileStore):
            shared = torchs.FileStore(shared.path, -1)  # whose timeout is the members' to set
        store: Store = torchs.PrefixStore(f"elastic/{run_id}/round/{name}", shared)
        return store

    return MadeStores(lambda name: lazy_store(lambda: members_store(name)), address, workers, host)

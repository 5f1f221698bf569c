"""What the members of a round share, in etcd: an `EtcdStore` of their own, which costs nothing until it is used.

To import torch takes a second or two, which agents do not spend on a store that hardly any of them uses. So it is a
torch store where torch is imported already: no program can pass it to torch otherwise. Elsewhere it has the same
methods, and imports torch when it is first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from elastic_core.plugin import LateStore
from elastic_etcd.client.errors import EtcdUnreachable
from elastic_etcd.client.values import Delete, Get, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.plugin import Store
    from elastic_etcd.backend.keys import Keys
    from elastic_etcd.client.client import EtcdClient


def round_store(connect: Callable[[], EtcdClient], keys: Keys, name: str) -> Store:
    """The store of the round with this name. Its keys go with the state of the job, or when one of a later round is
    written to.

    Args:
        connect: makes a client, which is closed with the store.
    """

    def make() -> Store:
        from elastic_etcd.store import EtcdStore

        client = connect()
        made: Store = EtcdStore(
            client, keys.round_store(name), lease=lambda: _lease(client, keys, name), owns_client=True
        )
        return made

    return make() if sys.modules.get("torch") else cast("Store", LateStore(make))


def _lease(client: EtcdClient, keys: Keys, name: str) -> int:
    """That of the job's state, which lives as long as the job. On the way, what earlier rounds left goes. Raises
    EtcdError."""
    earlier = Delete(keys.store.encode(), keys.earlier_rounds(name).encode())
    found = client.transact(Transaction((), (Get(keys.state), earlier))).ranges[0].first
    if found is None or not found.lease:
        raise EtcdUnreachable(f"expected the state of a job under the key {keys.state.decode()!r}, found none")
    return found.lease

"""Provides each round's store. By default, all rounds share one store, in which each has a separate prefix."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from elastic_core.interfaces.backend import RoundStores
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.rendezvous.store_connection import close_client
from elastic_core.support.workers_store import WorkersStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from elastic_core.interfaces.backend import Store


class PrefixedStore:
    """A view of another store, limited to the keys that begin with a prefix. Implements `interfaces.backend.Store`."""

    def __init__(self, prefix: str, store: Store) -> None:
        self._prefix = prefix
        self._store = store

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(self._key(key), value)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._key(key), amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._store.compare_set(self._key(key), expected, desired)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names = [self._key(key) for key in keys]
        if timeout is None:
            self._store.wait(names)
        else:
            self._store.wait(names, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check([self._key(key) for key in keys])

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._key(key))

    def num_keys(self) -> int:
        """Return the number of keys in the whole store, because a store cannot count only those with a prefix."""
        return self._store.num_keys()


def prefixed(prefix: str, store: Store) -> Store:
    """Return a view of `store` that is limited to the keys that begin with `prefix`. If `store` is a torch store, so is
    the view. This function never imports torch."""
    torch_stores: Any = sys.modules.get("torch.distributed")
    if torch_stores is not None and isinstance(store, torch_stores.Store):
        found: Store = torch_stores.PrefixStore(prefix, store)
        return found
    return PrefixedStore(prefix, store)


class StoreOnFirstUse:
    """A store that is created only when it is first used, because most jobs never use a round's store. Only one thread
    may use it. For `prefix`, see `prefixed`; an empty string means no prefix."""

    def __init__(self, make: Callable[[], Store], prefix: str = "") -> None:
        self._make = make
        self._prefix = prefix
        self._made: Store | None = None
        self._seen: Store | None = None

    def close(self) -> None:
        """Close the store if it was created."""
        close_client(self._made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._seen is None:
            self._made = self._make()
            self._seen = prefixed(self._prefix, self._made) if self._prefix else self._made
        return getattr(self._seen, name)


class MadeStores(RoundStores):
    """Provides a store for each round's members, and the workers' store in rank 0's agent.

    Args:
        make: creates the store that a round's members share, given the round's name. The store is closed before the
            next round.
        address: the address that this node advertises, or a function that looks it up.
        host: the host at which this node's workers reach the workers' store (default: the address that rank 0
            advertises). Nodes may use different hosts, so the server then listens on all addresses of its machine.
    """

    def __init__(self, make: Callable[[str], Store], address: str | Callable[[], str], host: str = "") -> None:
        self._make = make
        self._address = address
        self._workers = WorkersStore(everywhere=bool(host))
        self._host = host
        self._made: Store | None = None

    @property
    def hosted_by_agent(self) -> bool:
        return self._workers.hosted_by_agent

    def reserve(self) -> RendezvousStoreInfo:
        address = self._address if isinstance(self._address, str) else self._address()
        port = self._workers.reserve(address)
        self._close_made()
        return RendezvousStoreInfo(address, port)

    def seen_from_here(self, host: RendezvousStoreInfo) -> RendezvousStoreInfo:
        return RendezvousStoreInfo(self._host or host.master_addr, host.master_port)

    def open(self, name: str, host: RendezvousStoreInfo, is_host: bool) -> Store:
        if is_host:
            self._workers.serve()
        else:
            self._workers.release()
        self._made = self._make(name)
        return self._made

    def release(self) -> None:
        self._workers.release()
        self._close_made()

    def _close_made(self) -> None:
        close_client(self._made)
        self._made = None


class PrefixedStores(MadeStores):
    """Keeps all rounds' stores in one store, each under a separate prefix."""

    def __init__(self, store: Store, run_id: str, address: str | Callable[[], str]) -> None:
        super().__init__(lambda name: prefixed(f"elastic/{run_id}/{name}", store), address)

"""The stores of a round: the members' is in etcd, and made when somebody first uses it; the workers' is hosted by rank
0's worker, at a port that its agent has reserved. So no agent imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from elastic_core.rendezvous import PrefixedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.interfaces.bootstrap import RendezvousStoreInfo
    from elastic_core.interfaces.store import Store


class LateStore:
    """A store that is made when it is first used. Passes everything on. Used from one thread."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._made: Store | None = None

    @property
    def made(self) -> Store:
        """The store."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.made, name)


class EtcdRoundStores(PrefixedStores):
    """See `RoundStores`.

    Args:
        make: a store in etcd, for all rounds of the job.
        address: what this node advertises.
    """

    def __init__(self, make: Callable[[], Store], run_id: str, address: str) -> None:
        super().__init__(cast("Store", LateStore(make)), run_id, address)


class TorchRoundStores(PrefixedStores):
    """The same, with stores that torch takes for its own."""

    def __init__(self, make: Callable[[], Store], run_id: str, address: str) -> None:
        self._late = LateStore(make)
        super().__init__(cast("Store", self._late), run_id, address)

    def open(self, number: int, host: RendezvousStoreInfo, is_host: bool) -> Store:
        from torch.distributed import PrefixStore

        super().open(number, host, is_host)
        store: Store = PrefixStore(f"round/{number}", self._late.made)
        return store

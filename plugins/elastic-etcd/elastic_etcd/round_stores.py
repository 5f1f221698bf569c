"""The stores of a round: the members' is in etcd, and made when somebody first uses it; the workers' is hosted by rank
0's worker, at a port that its agent has reserved. So no agent imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from elastic_core.rendezvous import PrefixedStore, PrefixedStores

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

    def close(self) -> None:
        """Let go of what was made, if anything was."""
        if self._made is not None:
            cast("Any", self._made).close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.made, name)


class EtcdRoundStores(PrefixedStores):
    """See `RoundStores`.

    Args:
        make: a store in etcd, for one round of the job: what it needs of etcd for that long is its own.
        run_id: the job.
        address: what this node advertises.
    """

    def __init__(self, make: Callable[[], Store], run_id: str, address: str) -> None:
        self._make = make
        self._last = LateStore(make)
        super().__init__(cast("Store", self._last), run_id, address)

    def open(self, number: int, host: RendezvousStoreInfo, is_host: bool) -> Store:
        super().open(number, host, is_host)  # lets go of the port, unless it is needed
        self._last.close()
        self._last = LateStore(self._make)
        return self._of_round(number, self._last)

    def _of_round(self, number: int, late: LateStore) -> Store:
        return PrefixedStore(f"round/{number}", cast("Store", late))


class TorchRoundStores(EtcdRoundStores):
    """The same, with stores that torch takes for its own."""

    def _of_round(self, number: int, late: LateStore) -> Store:
        from torch.distributed import PrefixStore

        store: Store = PrefixStore(f"round/{number}", late.made)
        return store

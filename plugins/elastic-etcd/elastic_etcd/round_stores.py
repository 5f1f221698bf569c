"""The stores of a round: the members' is in etcd, and made when somebody first uses it; the workers' is hosted by rank
0's worker, at a port that its agent has reserved. So no agent imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from elastic_core.rendezvous import PrefixedStores

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.interfaces.store import Store


class LateStore:
    """A store that is made when it is first used. Passes everything on. Used from one thread."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._made: Store | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._made is None:
            self._made = self._make()
        return getattr(self._made, name)


def round_stores(make: Callable[[], Store], run_id: str, address: str) -> PrefixedStores:
    """Args:
    make: a store in etcd, for all rounds of the job.
    address: what this node advertises.
    """
    return PrefixedStores(cast("Store", LateStore(make)), run_id, address)

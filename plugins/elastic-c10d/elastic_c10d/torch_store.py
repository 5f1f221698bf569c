"""What we need of a torch store beyond what rounds' members need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from elastic_core.interfaces.store import Store as RoundStore

if TYPE_CHECKING:
    from collections.abc import Sequence


class Store(RoundStore, Protocol):
    """A `torch.distributed.Store`, or what has these of its methods."""

    def multi_get(self, keys: Sequence[str]) -> Sequence[bytes]:
        """The values of keys that exist, in one operation."""
        ...


def innermost(store: Store) -> Store:
    """The store beneath all PrefixStores."""
    while True:
        beneath: Store | None = getattr(store, "underlying_store", None)
        if beneath is None:
            return store
        store = beneath

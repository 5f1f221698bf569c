"""The key-value store that the members of a round share: the part of `torch.distributed.Store` that we rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


class Store(Protocol):
    """Keys are text, values bytes. Method names and meaning are torch's, so that a torch store is one of these."""

    def get(self, key: str) -> bytes:
        """The value, waiting up to the store's timeout for the key to appear."""
        ...

    def set(self, key: str, value: str | bytes) -> None:
        """Write the value."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that starts at 0, and return its new value."""
        ...

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected` (empty: absent). Returns the value that stands afterwards, or,
        where the key is absent and stays so, `expected`, as torch's stores do."""
        ...

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys exist."""
        ...

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist."""
        ...

    def delete_key(self, key: str) -> bool:
        """Remove the key; whether it was there."""
        ...

    def num_keys(self) -> int:
        """How many keys there are."""
        ...

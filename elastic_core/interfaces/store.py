"""The key-value store that the members of a round share: the part of `torch.distributed.Store` that we rely on. And a
server of the rendezvous store, for `elastic serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


class Store(Protocol):
    """Keys are text, values bytes. Methods have the names and the meaning of torch's, so a torch store is a `Store`."""

    def get(self, key: str) -> bytes:
        """The value. Waits up to the store's timeout for the key to appear."""

    def set(self, key: str, value: str | bytes) -> None:
        """Write the value."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that starts at 0, and return its new value."""

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected` (empty: the key is absent). Returns the value afterwards. If the
        key was absent and stays absent, returns `expected`, as torch's stores do."""

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys exist."""

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist."""

    def delete_key(self, key: str) -> bool:
        """Remove the key. Returns whether it existed."""

    def num_keys(self) -> int:
        """The number of keys."""


class StoreServer(Protocol):
    """Serves in a process of its own from `start` until `stop`. Used from one thread."""

    def start(self) -> object:
        """Start to serve. Returns once clients can connect; the result is ignored.

        Raises:
            ConfigurationError: the endpoint does not belong to this machine, or its port is taken.
        """

    @property
    def endpoint(self) -> str:
        """Host and port where it serves, joined by a colon; the port is the actual one. Read after `start`."""

    def stop(self) -> None:
        """End the server and all its connections. Idempotent."""

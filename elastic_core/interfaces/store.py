"""The interfaces of the key-value store that a round's members share (a subset of `torch.distributed.Store`) and of the
store server that `elastic serve` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


class Store(Protocol):
    """Maps strings to bytes. Method names and semantics are torch's, so a torch store can be used as a `Store`."""

    def get(self, key: str) -> bytes:
        """Return the key's value. If the key does not exist yet, wait until it exists, up to the store's timeout."""

    def set(self, key: str, value: str | bytes) -> None:
        """Write the key's value."""

    def add(self, key: str, amount: int) -> int:
        """Add `amount` to a counter that starts at 0. Returns the new value."""

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected` or, if `expected` is empty, if the key does not exist. Returns the
        value after the call, or `expected` if the key still does not exist, as torch's stores do."""

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys exist."""

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""

    def delete_key(self, key: str) -> bool:
        """Remove the key. Returns whether it existed."""

    def num_keys(self) -> int:
        """Return the number of keys."""


class StoreServer(Protocol):
    """Serves the rendezvous store from a separate process. Only one thread calls the methods."""

    def start(self) -> object:
        """Start the server. Returns once clients can connect. The return value is ignored.

        Raises:
            ConfigurationError: the endpoint does not belong to this machine, or its port is already in use.
        """

    @property
    def endpoint(self) -> str:
        """The host and the actual port, in the format of `--rdzv-endpoint`. Read it only after `start`."""

    def stop(self) -> None:
        """Stop the server and close all its connections. Idempotent."""

"""Interfaces for the key-value store that a round's members share (a subset of `torch.distributed.Store`) and for the
store server that `elastic serve` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


class Store(Protocol):
    """Maps text keys to bytes. Names and semantics are torch's, so a torch store is a `Store`."""

    def get(self, key: str) -> bytes:
        """Return the value. Waits for the key to appear, up to the store's timeout."""

    def set(self, key: str, value: str | bytes) -> None:
        """Write the value."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that starts at 0. Returns its new value."""

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected`; an empty `expected` requires that the key is absent. Like torch's
        stores, returns the resulting value, or `expected` if the key was absent and still is."""

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys exist."""

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""

    def delete_key(self, key: str) -> bool:
        """Remove the key. Returns whether it existed."""

    def num_keys(self) -> int:
        """Return the number of keys."""


class StoreServer(Protocol):
    """Serves the rendezvous store from a separate process. Used from one thread."""

    def start(self) -> object:
        """Start the server. Returns once clients can connect; the result is ignored.

        Raises:
            ConfigurationError: the endpoint does not belong to this machine, or its port is taken.
        """

    @property
    def endpoint(self) -> str:
        """The host and the actual port, as in `--rdzv-endpoint`. Read it after `start`."""

    def stop(self) -> None:
        """Stop the server and close all its connections. Idempotent."""

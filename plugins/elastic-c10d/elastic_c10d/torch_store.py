"""Support for torch's stores: a delayed import of torch, the store protocol that this package needs, and a store that
connects on first use.

torch's sockets write a stack trace to stderr for every refused connection and every wait that times out. These traces
are suppressed, because torch also raises the errors and the agent reports them. torch reads its log level only once,
when it is imported.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Protocol

from elastic_core.plugin import Store as RoundStore
from elastic_core.plugin import import_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

_METHODS = (
    "set", "get", "add", "compare_set", "wait", "check", "delete_key", "append", "multi_get", "multi_set",
    "has_extended_api", "list_keys", "queue_push", "queue_pop", "queue_len", "clone",
)  # fmt: skip


def distributed() -> Any:
    """Return the module `torch.distributed`, importing it on first use."""
    return import_with("torch.distributed", "TORCH_CPP_LOG_LEVEL", "FATAL")


class Store(RoundStore, Protocol):
    """A `torch.distributed.Store`, or an object with these methods."""

    def multi_get(self, keys: Sequence[str]) -> Sequence[bytes]:
        """Return the values of keys that exist, in one operation."""
        ...


def innermost(store: Store) -> Store:
    """Return the store beneath all PrefixStore wrappers."""
    while True:
        beneath: Store | None = getattr(store, "underlying_store", None)
        if beneath is None:
            return store
        store = beneath


def lazy_store(connect: Callable[[], Store]) -> Store:
    """Create a `torch.distributed.Store` that calls `connect` on first use and forwards all operations to the resulting
    store. Most jobs never use the round's store, so the delay saves one connection per node. Thread-safe. Operations
    raise errors from `connect` and from torch.

    Keep a Python reference to the store for as long as it may be used. A PrefixStore or process group holds only the
    C++ object, and fails once the Python object has been deleted.
    """
    store: Store = _class()(connect)
    return store


@functools.cache
def _class() -> Any:
    """Create the class of `lazy_store` on first use, because its base class requires torch."""
    base = distributed().Store

    class LazyStore(base):  # type: ignore[misc, valid-type]
        def __init__(self, connect: Callable[[], Store]) -> None:
            super().__init__()
            self._connect = connect
            self._connecting = threading.Lock()
            self._target: Any = None
            self._patience: timedelta | None = None

        def _passed_on(self) -> Any:
            with self._connecting:
                if self._target is None:
                    self._target = self._connect()
                if self._patience != self.timeout:  # a PrefixStore may have set it in C++ only
                    self._patience = self.timeout
                    self._target.set_timeout(self._patience)
                return self._target

        def num_keys(self) -> int:
            target = self._passed_on()
            # torch's num_keys includes other rounds' keys. Older versions cannot list keys.
            return len(target.list_keys()) if hasattr(target, "list_keys") else int(target.num_keys())

        getNumKeys = num_keys  # noqa: N815  # the name by which PrefixStore calls it

    for name in _METHODS:
        setattr(LazyStore, name, _forwarder(name))
    LazyStore.deleteKey = LazyStore.delete_key  # likewise
    return LazyStore


def _forwarder(name: str) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._passed_on(), name)(*args, **kwargs)

    forward.__name__ = name
    return forward

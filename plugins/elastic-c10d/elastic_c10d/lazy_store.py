"""A torch store that connects when it is first used. Most jobs never touch the store of a round: their workers have one
of their own, and ranks come with the round. A thousand nodes save a thousand connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_c10d.torch_import import distributed

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_c10d.torch_store import Store

_METHODS = (
    "set", "get", "add", "compare_set", "wait", "check", "delete_key", "num_keys", "append", "multi_get", "multi_set",
    "set_timeout", "has_extended_api", "list_keys",
)  # fmt: skip


def lazy_store(connect: Callable[[], Store]) -> Store:
    """A `torch.distributed.Store` that calls `connect` at its first use and passes everything on to what that returns.
    Used from one thread. Raises what `connect` raises, and torch's errors."""
    store: Store = _class()(connect)
    return store


def _class() -> Any:
    """Made anew each time, since torch must not be imported before."""
    base = distributed().Store

    class LazyStore(base):  # type: ignore[misc, valid-type]
        def __init__(self, connect: Callable[[], Store]) -> None:
            super().__init__()
            self._connect = connect
            self._target: Any = None

        def _passed_on(self) -> Any:
            if self._target is None:
                self._target = self._connect()
            return self._target

        def clone(self) -> Any:
            return self._passed_on().clone()

        @property
        def timeout(self) -> Any:
            return self._passed_on().timeout

    for name in _METHODS:
        setattr(LazyStore, name, _forwarder(name))
    return LazyStore


def _forwarder(name: str) -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._passed_on(), name)(*args, **kwargs)

    forward.__name__ = name
    return forward

"""Adapts rendezvous backends that were written for torchrun (entry points in the group `torchrun.handlers`).

Such an entry point is a function that returns a creator. The creator takes the parameters and returns the handler. The
entry point's module is imported only when a user selects the backend, because it usually imports torch. The handler's
errors are recognized by class name and replaced with elastic-core's.

By default, torch's dynamic handler shares one store with the workers of every round. Workers would find the addresses
of dead peers in this store. After rank 0 fails or a node joins, the members would get different addresses for the
store. While the variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set, rank 0 instead gives all members of a round the
same address, with a new port. The handler reads this variable in each call."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.errors import (
    ElasticError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.hooks.discovery import HANDLERS_GROUP
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.interfaces.handler import RendezvousHandler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.hooks.discovery import Candidate
    from elastic_core.hooks.records import Context
    from elastic_core.interfaces.handler import RendezvousInfo, RendezvousParameters

NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

_OURS: dict[str, type[RendezvousError]] = {
    "DistError": RendezvousConnectionError,  # from torch's stores, where its handlers look up rank 0's address
    "RendezvousClosedError": RendezvousClosedError,
    "RendezvousConnectionError": RendezvousConnectionError,
    "RendezvousError": RendezvousError,
    "RendezvousGracefulExitError": RendezvousGracefulExitError,
    "RendezvousStateError": RendezvousStateError,
    "RendezvousTimeoutError": RendezvousTimeoutError,
}


_lock = threading.Lock()
_calls = 0  # running calls that need the variable and for which this module has set it


@contextlib.contextmanager
def store_not_shared() -> Iterator[None]:
    """Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE while torch chooses the workers' store, unless the user has set it.
    Workers do not inherit the variable, because their environment was copied earlier, and no worker starts in the
    meantime. Thread-safe. If several jobs' calls overlap, the last call to end removes the variable."""
    global _calls
    with _lock:
        ours = _calls > 0 or NOT_SHARED not in os.environ
        if ours:
            _calls += 1
            os.environ[NOT_SHARED] = "1"
    try:
        yield
    finally:
        with _lock:
            if ours:
                _calls -= 1
                if _calls == 0:
                    os.environ.pop(NOT_SHARED, None)


class TorchrunHandler(RendezvousHandler):
    """Adapts a handler that was written for torchrun. Replaces the handler's errors with elastic-core's, and prevents
    torch's own handlers from sharing one store with the workers of all rounds. If a handler reports a shared store
    nevertheless, the agent uses that store.

    Args:
        foreign: the handler, with the methods of torch's RendezvousHandler; older handlers lack `use_agent_store`.
    """

    def __init__(self, foreign: Any) -> None:
        self._foreign = foreign
        self._over = False

    def get_backend(self) -> str:
        return str(self._foreign.get_backend())

    def get_run_id(self) -> str:
        return str(self._foreign.get_run_id())

    def next_rendezvous(self) -> RendezvousInfo:
        with _our_errors(), store_not_shared():
            info: RendezvousInfo = self._foreign.next_rendezvous()
            return info

    def is_closed(self) -> bool:
        with _our_errors():
            return bool(self._foreign.is_closed())

    def set_closed(self) -> None:
        self._over = True
        with _our_errors():
            self._foreign.set_closed()

    def num_nodes_waiting(self) -> int:
        with _our_errors():
            return int(self._foreign.num_nodes_waiting())

    @property
    def outage_patience(self) -> None:
        """Always None, because the store may end when the first node finishes. Unlike in torchrun, there is no exit
        barrier that makes that node wait for the other nodes."""

    def shutdown(self) -> bool:
        """Shut down the wrapped handler only if this node has closed the job, because shutting down torch's handlers
        closes the job for all nodes. If a node only leaves, its resources are released when its process ends."""
        if not self._over:
            return False
        with _our_errors():
            return bool(self._foreign.shutdown())

    @property
    def use_agent_store(self) -> bool:
        with store_not_shared():
            return bool(getattr(self._foreign, "use_agent_store", False))


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    """Replace an error with elastic-core's error of the same class name. The name of a base class also matches."""
    try:
        yield
    except ElasticError:
        raise
    except Exception as error:
        ours = next((_OURS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _OURS), None)
        if ours is None:
            raise
        raise ours(str(error) or _default_message(ours)) from error


def _default_message(kind: type[RendezvousError]) -> str:
    """Return a message for an error that torch's handlers raise without one."""
    if issubclass(kind, RendezvousClosedError):
        return "the job was closed; the rendezvous handler does not report by which node"
    return f"the rendezvous handler raised {kind.__name__} without a message"


def record_of(candidate: Candidate) -> RendezvousBackendRecord:
    """Return a backend for the entry point. The backend accepts any option, and gets its value as a string."""

    def create(context: Context, params: RendezvousParameters) -> RendezvousHandler:
        creator = candidate.load()()
        if not callable(creator):
            raise TypeError(f"{candidate.target}() must return a function, but returned {creator!r}")
        with _our_errors(), store_not_shared():
            return TorchrunHandler(creator(params))

    summary = f"written for torchrun ({HANDLERS_GROUP})"
    return RendezvousBackendRecord(candidate.source.plugin, summary, create, options=None)

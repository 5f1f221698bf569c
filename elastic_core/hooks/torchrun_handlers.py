"""Rendezvous backends that were written for torchrun (group `torchrun.handlers`), offered as backends of ours.

Such an entry point loads to a callable. Calling it gives the creator, which takes the parameters and returns the
handler. The module is imported only when a user selects the backend, because such modules import torch at their top.
Their handlers raise torch's errors. We recognise these by their class names and raise our own instead.

torch's dynamic handler hosts one store and gives it to the workers of every round. There they would find the addresses
of dead peers; and after the loss of rank 0, or when a node joins, it gives the members different addresses. At each
call it reads the variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE. While that is set, rank 0 gives one address with a new
port to all members of each round.
"""

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
from elastic_core.hooks.selection import Provided
from elastic_core.interfaces.handler import RendezvousHandler

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from elastic_core.hooks.context import Context
    from elastic_core.hooks.discovery import Candidate
    from elastic_core.interfaces.handler import RendezvousInfo, RendezvousParameters

SUMMARY = f"written for torchrun ({HANDLERS_GROUP})"
NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

_OURS: dict[str, type[RendezvousError]] = {
    "DistError": RendezvousConnectionError,  # torch's stores raise it; its handlers look up rank 0's address there
    **{
        ours.__name__: ours
        for ours in (
            RendezvousClosedError,
            RendezvousConnectionError,
            RendezvousError,
            RendezvousGracefulExitError,
            RendezvousStateError,
            RendezvousTimeoutError,
        )
    },
}


class HeldVariable:
    """An environment variable that is set while at least one call holds it. A value that the user has set stays. Used
    from any thread: calls overlap in a program that runs several jobs, and the last one to end removes the variable.
    """

    def __init__(self, name: str, value: str, environ: MutableMapping[str, str]) -> None:
        self._name = name
        self._value = value
        self._environ = environ
        self._lock = threading.Lock()
        self._holders = 0
        self._ours = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if self._holders == 0:
                self._ours = self._name not in self._environ
                self._environ.setdefault(self._name, self._value)
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0 and self._ours:
                    self._environ.pop(self._name, None)


_not_shared = HeldVariable(NOT_SHARED, "1", os.environ)  # one for the process, like the environment


def store_not_shared() -> contextlib.AbstractContextManager[None]:
    """Wrap a call in which torch decides about the workers' store. No worker inherits the variable: the environment of
    the workers is copied when the agent is put together, and no worker starts during such a call."""
    return _not_shared.held()


class TorchrunHandler(RendezvousHandler):
    """Adapts a handler that was written for torchrun: the same answers, our errors. torch's own handlers are asked not
    to share one store with the workers of all rounds. If a handler still says that it shares one, that is believed.

    Args:
        foreign: has the methods of torch's RendezvousHandler; older handlers lack `use_agent_store`.
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
        """None: the first node that finishes may end the store, because there is no barrier at the end as in torchrun,
        in which that node would wait for the others."""

    def shutdown(self) -> bool:
        """Shut the foreign handler down only if this node has closed the job. The shutdown of torch's handlers closes
        the job for all nodes, which a node that leaves must not do; what its handler holds ends with the process."""
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
    """Turn an error into ours of the same class name, or of the name of one of its base classes."""
    try:
        yield
    except ElasticError:
        raise
    except Exception as error:
        ours = next((_OURS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _OURS), None)
        if ours is None:
            raise
        raise ours(str(error) or _without_words(ours)) from error


def _without_words(kind: type[RendezvousError]) -> str:
    """torch's handlers raise some errors without a text."""
    if issubclass(kind, RendezvousClosedError):
        return "the job was closed; its rendezvous handler does not say which node closed it"
    return f"the rendezvous handler raised {kind.__name__} without a reason"


def provided_handler(candidate: Candidate) -> Provided[RendezvousBackendRecord]:
    """The entry point as a backend that takes any option, as text."""

    def create(context: Context, params: RendezvousParameters) -> RendezvousHandler:
        creator = candidate.load()()
        if not callable(creator):
            raise TypeError(f"expected that {candidate.target}() returns a function, found {creator!r}")
        with _our_errors(), store_not_shared():
            return TorchrunHandler(creator(params))

    return Provided(RendezvousBackendRecord(candidate.source.plugin, SUMMARY, create, options=None), candidate.source)

"""Rendezvous backends written for torchrun (group `torchrun.handlers`), offered as backends of ours.

Such an entry point loads to a callable; calling it gives the creator, which takes the parameters and returns the
handler. Nothing of it is imported before a user selects it: these modules import torch at their top. What they raise
are torch's errors, which are told by their names and become ours.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from elastic_core.errors import (
    ElasticError,
    PluginError,
    Problem,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.hooks.discovery import HANDLERS_GROUP, described_error
from elastic_core.hooks.names import normalised
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.hooks.selection import Provided, names_of
from elastic_core.hooks.torchrun_sharing import store_not_shared
from elastic_core.interfaces.handler import RendezvousHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from elastic_core.hooks.discovery import Candidate
    from elastic_core.interfaces.handler import RendezvousInfo, RendezvousParameters

SUMMARY = f"written for torchrun ({HANDLERS_GROUP})"

_OURS: dict[str, type[RendezvousError]] = {
    "DistError": RendezvousConnectionError,  # of torch's stores, in which its handlers look for rank 0's address
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


class TorchrunHandler(RendezvousHandler):
    """A handler that was written for torchrun, as one of ours: the same answers, our errors. torch's own ones are asked
    not to share one store with the workers of all rounds; one that does so even so is taken at its word.

    Args:
        foreign: has the methods of torch's RendezvousHandler; older ones know no `use_agent_store`.
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
        """The first node that is done may take the store along: torchrun's barrier at the end, in which it would wait
        for the others, is not there."""

    def shutdown(self) -> bool:
        """The foreign one is shut down only if this node has closed the job: torch's close it by that for everybody,
        and a node that leaves must not. What such a handler holds then ends with the process."""
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
    """Raise the error of ours that has the name of what is raised, or of one of its base classes."""
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
    """torch's handlers say neither who closed a job nor for what they waited in vain."""
    if issubclass(kind, RendezvousClosedError):
        return "the job was closed; its rendezvous handler does not tell by whom"
    return f"the rendezvous handler raised {kind.__name__} without a reason"


def provided_handler(candidate: Candidate) -> Provided[RendezvousBackendRecord]:
    """The entry point as a backend that takes any option, as text."""

    def create(params: RendezvousParameters) -> RendezvousHandler:
        return TorchrunHandler(_made(candidate, params))

    return Provided(RendezvousBackendRecord(candidate.source.plugin, SUMMARY, create, options=None), candidate.source)


def _made(candidate: Candidate, params: RendezvousParameters) -> Any:
    """The foreign handler. Raises PluginError when it cannot be made, or the error of ours that stands for torch's."""
    creator = _creator(candidate)
    try:
        with _our_errors(), store_not_shared():
            return creator(params)
    except ElasticError:
        raise
    except Exception as error:
        raise _fault(candidate, f"failed to make a handler: {described_error(error)}") from error


def _creator(candidate: Candidate) -> Callable[[Any], Any]:
    """Load the entry point and call what it loads. Raises PluginError when that fails or gives nothing to call."""
    try:
        creator = candidate.load()()
    except (Exception, SystemExit) as error:
        raise _fault(candidate, f"failed to load: {described_error(error)}") from error
    if not callable(creator):
        raise _fault(candidate, f"gave {creator!r}, expected a function that makes handlers")
    function: Callable[[Any], Any] = creator
    return function


def _fault(candidate: Candidate, what: str) -> PluginError:
    origin = f"{HANDLERS_GROUP}: {candidate.source.plugin}"
    return PluginError(Problem(origin, f"{candidate.target} of {candidate.source} {what}"))


def without_twins(
    handlers: Iterable[Provided[RendezvousBackendRecord]], native: Iterable[Provided[RendezvousBackendRecord]]
) -> list[Provided[RendezvousBackendRecord]]:
    """The handlers for which the same distribution brings no backend of that name itself.

    A distribution may serve torchrun and us under one name; its own backend for us is the better one.
    """
    own = {(normalised(item.source.distribution), name) for item in native for name in names_of(item.record)}
    return [item for item in handlers if (normalised(item.source.distribution), item.record.name) not in own]

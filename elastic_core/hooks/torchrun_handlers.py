"""Rendezvous backends written for torchrun (group `torchrun.handlers`), offered as backends of ours.

Such an entry point loads to a callable; calling it gives the creator, which takes the parameters and returns the
handler. Nothing of it is imported before a user selects it: these modules import torch at their top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.errors import PluginError, Problem
from elastic_core.hooks.discovery import HANDLERS_GROUP, described_error
from elastic_core.hooks.names import normalised
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.hooks.selection import Provided, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elastic_core.hooks.discovery import Candidate
    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters

SUMMARY = f"written for torchrun ({HANDLERS_GROUP})"


def provided_handler(candidate: Candidate) -> Provided[RendezvousBackendRecord]:
    """The entry point as a backend that takes any option, as text."""

    def create(params: RendezvousParameters) -> RendezvousHandler:
        handler: RendezvousHandler = _creator(candidate)(params)
        return handler

    return Provided(RendezvousBackendRecord(candidate.source.plugin, SUMMARY, create, options=None), candidate.source)


def _creator(candidate: Candidate) -> Callable[[Any], Any]:
    """Load the entry point and call what it loads. Raises PluginError when that fails or gives nothing to call."""
    origin = f"{HANDLERS_GROUP}: {candidate.source.plugin}"
    try:
        creator = candidate.load()()
    except (Exception, SystemExit) as error:
        message = f"{candidate.target} of {candidate.source} failed to load: {described_error(error)}"
        raise PluginError(Problem(origin, message)) from error
    if not callable(creator):
        message = f"{candidate.target} of {candidate.source} gave {creator!r}, expected a function that makes handlers"
        raise PluginError(Problem(origin, message))
    function: Callable[[Any], Any] = creator
    return function


def without_twins(
    handlers: Iterable[Provided[RendezvousBackendRecord]], native: Iterable[Provided[RendezvousBackendRecord]]
) -> list[Provided[RendezvousBackendRecord]]:
    """The handlers for which the same distribution brings no backend of that name itself.

    A distribution may serve torchrun and us under one name; its own backend for us is the better one.
    """
    own = {(normalised(item.source.distribution), name) for item in native for name in names_of(item.record)}
    return [item for item in handlers if (normalised(item.source.distribution), item.record.name) not in own]

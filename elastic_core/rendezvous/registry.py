"""Handlers by the name of their backend: torch's registry, which reaches the installed plugins as well."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters

    Creator = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Creators that a program registers itself."""

    def __init__(self) -> None:
        self._creators: dict[str, Creator] = {}

    def register(self, backend: str, creator: Creator) -> None:
        """Raises ValueError for an empty name, or one that another creator has."""
        if not backend:
            raise ValueError("expected the name of a rendezvous backend, found an empty one")
        if self._creators.get(backend, creator) is not creator:
            raise ValueError(f"expected a name that is free, found that {backend!r} has a creator already")
        self._creators[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Raises ValueError if the backend is not registered, or the creator made a handler for another one."""
        creator = self._creators.get(params.backend)
        if creator is None:
            known = ", ".join(sorted(self._creators)) or "none"
            raise ValueError(f"expected a registered rendezvous backend ({known}), found {params.backend!r}")
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise ValueError(f"expected a handler for {params.backend!r}, found one for {handler.get_backend()!r}")
        return handler

    def __contains__(self, backend: str) -> bool:
        return backend in self._creators


rendezvous_handler_registry = RendezvousHandlerRegistry()
"""The registry of this process."""


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler for `params.backend`: of the registry, else of an installed plugin.

    Raises:
        ConfigurationError: no plugin brings the backend (then it says what is installed), or an option is wrong.
    """
    if params.backend in rendezvous_handler_registry:
        return rendezvous_handler_registry.create_handler(params)
    from elastic_core.hooks.manager import PluginManager  # reads what is installed; only needed here
    from elastic_core.hooks.options import type_options
    from elastic_core.hooks.records import RendezvousBackendRecord

    record = PluginManager.load(os.environ).select(RendezvousBackendRecord, params.backend)
    options, problems = type_options(record.options, params.config, "RendezvousParameters")
    if problems:
        raise ConfigurationError(*problems)
    params.config = options
    handler = record.factory(params)
    if handler is None:
        raise ConfigurationError(Problem("RendezvousParameters", f"the backend {params.backend!r} gave no handler"))
    return handler

"""Handlers by the name of their backend: torch's registry, then the installed plugins."""

from __future__ import annotations

import os
from collections.abc import Callable

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]
"""Makes the handler of one job on one node."""


class RendezvousHandlerRegistry:
    """A program's own functions that make handlers, by the name of the backend."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Raises ValueError if the name is empty, or if another creator is registered under it."""
        if not backend:
            raise ValueError("expected the name of a rendezvous backend, found an empty one")
        if self._creators.get(backend, creator) != creator:
            raise ValueError(f"expected a free name, found that {backend!r} already has a creator")
        self._creators[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Raises ValueError if the backend is not registered, and RuntimeError if the creator returned a handler for
        another backend."""
        creator = self._creators.get(params.backend)
        if creator is None:
            return self._unregistered(params)
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(f"expected a handler for {params.backend!r}, found one for {handler.get_backend()!r}")
        return handler

    def _unregistered(self, params: RendezvousParameters) -> RendezvousHandler:
        known = ", ".join(sorted(self._creators)) or "none"
        raise ValueError(f"expected a registered rendezvous backend ({known}), found {params.backend!r}")

    def __contains__(self, backend: str) -> bool:
        return backend in self._creators


class _WithInstalled(RendezvousHandlerRegistry):
    """Falls back to installed plugins."""

    def _unregistered(self, params: RendezvousParameters) -> RendezvousHandler:
        from elastic_core.hooks.context import Context
        from elastic_core.hooks.manager import PluginManager  # looks for installed plugins; only needed here
        from elastic_core.hooks.options import needed, type_options
        from elastic_core.hooks.records import RendezvousBackendRecord

        record = PluginManager.load(os.environ).select(RendezvousBackendRecord, params.backend)
        options, problems = type_options(record.options, needed(record.options, params.config), "RendezvousParameters")
        if problems:
            raise ConfigurationError(*problems)
        params.config = options
        handler = record.factory(Context(params.run_id, options), params)
        if handler is None:
            raise ConfigurationError(
                Problem("RendezvousParameters", f"expected a handler from the backend {params.backend!r}, found None")
            )
        return handler


rendezvous_handler_registry: RendezvousHandlerRegistry = _WithInstalled()
"""The registry of this process."""


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler for `params.backend`, from the registry or else from an installed plugin. Raises ConfigurationError if
    no plugin has the backend, or an option is invalid."""
    return rendezvous_handler_registry.create_handler(params)

"""Finds handlers by backend name: first in the program's own registry, then in the installed plugins."""

from __future__ import annotations

from collections.abc import Callable

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]
"""A function that creates the handler for one job on one node."""


class RendezvousHandlerRegistry:
    """Maps backend names to the program's own functions that create handlers."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register a creator. Raises ValueError if the name is empty or already has another creator."""
        if not backend:
            raise ValueError("the name of the rendezvous backend is empty")
        if self._creators.get(backend, creator) != creator:
            raise ValueError(f"the rendezvous backend {backend!r} already has a creator")
        self._creators[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Create a handler for `params.backend`. Raises ValueError if the backend is not registered, and RuntimeError
        if the creator returns a handler for another backend."""
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


class _WithInstalled(RendezvousHandlerRegistry):
    def _unregistered(self, params: RendezvousParameters) -> RendezvousHandler:
        from elastic_core.hooks.calls import installed_record
        from elastic_core.hooks.records import RendezvousBackendRecord

        chosen, context = installed_record(
            RendezvousBackendRecord, params.backend, params.config, "RendezvousParameters", params.run_id
        )
        params.config = dict(chosen.options)
        handler = chosen.record.factory(context, params)
        if handler is None:
            raise ConfigurationError(
                Problem("RendezvousParameters", f"the backend {params.backend!r} returned None instead of a handler")
            )
        return handler


rendezvous_handler_registry: RendezvousHandlerRegistry = _WithInstalled()
"""The registry of this process."""


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create a handler for `params.backend`. The program's registry takes precedence over installed plugins. Raises
    ConfigurationError if no plugin provides the backend or an option is invalid."""
    return rendezvous_handler_registry.create_handler(params)

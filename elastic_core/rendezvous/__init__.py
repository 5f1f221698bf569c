"""Rendezvous: lets nodes agree on the members of each round. This package exports the names that users and plugins
import."""

from typing import TYPE_CHECKING

from elastic_core.support.imports import lazy_names

if TYPE_CHECKING:
    from elastic_core.compat.state_store import StateStore
    from elastic_core.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
    from elastic_core.interfaces.backend import (
        Announced,
        EntryDroppedError,
        RendezvousBackend,
        RosterBackend,
        RoundStores,
        Token,
    )
    from elastic_core.interfaces.handler import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousStoreInfo,
        RoundHandler,
    )
    from elastic_core.interfaces.node import Member, Node, Round
    from elastic_core.rendezvous.handler import DynamicRendezvousHandler, create_handler
    from elastic_core.rendezvous.registry import (
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        get_rendezvous_handler,
        rendezvous_handler_registry,
    )
    from elastic_core.rendezvous.round_stores import PrefixedStore, PrefixedStores
    from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
    from elastic_core.rendezvous.store_backend import StoreBackend

__all__ = [
    "Announced",
    "DynamicRendezvousHandler",
    "EntryDroppedError",
    "Member",
    "Node",
    "StoreBackend",
    "PrefixedStore",
    "PrefixedStores",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "Round",
    "RoundHandler",
    "RoundStores",
    "RosterBackend",
    "StateStore",
    "Token",
    "create_handler",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "elastic_core.errors": (
                "RendezvousClosedError RendezvousConnectionError RendezvousError RendezvousGracefulExitError "
                "RendezvousStateError RendezvousTimeoutError"
            ),
            "elastic_core.interfaces.backend": (
                "Announced EntryDroppedError RendezvousBackend RosterBackend RoundStores Token"
            ),
            "elastic_core.interfaces.handler": (
                "RendezvousHandler RendezvousInfo RendezvousParameters RendezvousStoreInfo RoundHandler"
            ),
            "elastic_core.interfaces.node": "Member Node Round",
            "elastic_core.rendezvous.handler": "DynamicRendezvousHandler create_handler",
            "elastic_core.compat.state_store": "StateStore",
            "elastic_core.rendezvous.store_backend": "StoreBackend",
            "elastic_core.rendezvous.registry": (
                "RendezvousHandlerCreator RendezvousHandlerRegistry get_rendezvous_handler rendezvous_handler_registry"
            ),
            "elastic_core.rendezvous.round_stores": "PrefixedStore PrefixedStores",
            "elastic_core.rendezvous.settings": "RendezvousSettings RendezvousTimeout",
        },
    )

"""Rendezvous: how nodes agree on which of them take part. The names that users and plugins import."""

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
from elastic_core.rendezvous.over_state import StateStore
from elastic_core.rendezvous.over_store import OverStore
from elastic_core.rendezvous.registry import (
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)
from elastic_core.rendezvous.round_stores import PrefixedStore, PrefixedStores
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

__all__ = [
    "Announced",
    "DynamicRendezvousHandler",
    "EntryDroppedError",
    "Member",
    "Node",
    "OverStore",
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

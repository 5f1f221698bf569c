"""Rendezvous: how nodes agree on who takes part. The names that users and plugins import."""

from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.interfaces.backend import Announced, RendezvousBackend, RosterBackend, RoundStores, Token
from elastic_core.interfaces.handler import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RoundHandler,
)
from elastic_core.interfaces.node import Member, Node, Round
from elastic_core.rendezvous.create import OPTIONS, create_handler
from elastic_core.rendezvous.handler import DynamicRendezvousHandler
from elastic_core.rendezvous.registry import (
    RendezvousHandlerRegistry,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)
from elastic_core.rendezvous.round_stores import PrefixedStore, PrefixedStores
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.state_store import StateStore

__all__ = [
    "OPTIONS",
    "Announced",
    "DynamicRendezvousHandler",
    "Member",
    "Node",
    "PrefixedStore",
    "PrefixedStores",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
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

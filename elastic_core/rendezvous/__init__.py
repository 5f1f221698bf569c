"""Rendezvous, in which nodes agree on the members of each round. This package exports the names that users and plugins
import."""

from typing import TYPE_CHECKING

from elastic_core.support.imports import lazy_names

if TYPE_CHECKING:
    from elastic_core.compat.state_store import StateStore as StateStore
    from elastic_core.errors import RendezvousClosedError as RendezvousClosedError
    from elastic_core.errors import RendezvousConnectionError as RendezvousConnectionError
    from elastic_core.errors import RendezvousError as RendezvousError
    from elastic_core.errors import RendezvousGracefulExitError as RendezvousGracefulExitError
    from elastic_core.errors import RendezvousStateError as RendezvousStateError
    from elastic_core.errors import RendezvousTimeoutError as RendezvousTimeoutError
    from elastic_core.interfaces.backend import Announced as Announced
    from elastic_core.interfaces.backend import EntryDroppedError as EntryDroppedError
    from elastic_core.interfaces.backend import RendezvousBackend as RendezvousBackend
    from elastic_core.interfaces.backend import RosterBackend as RosterBackend
    from elastic_core.interfaces.backend import RoundStores as RoundStores
    from elastic_core.interfaces.backend import Token as Token
    from elastic_core.interfaces.handler import RendezvousHandler as RendezvousHandler
    from elastic_core.interfaces.handler import RendezvousInfo as RendezvousInfo
    from elastic_core.interfaces.handler import RendezvousParameters as RendezvousParameters
    from elastic_core.interfaces.handler import RendezvousStoreInfo as RendezvousStoreInfo
    from elastic_core.interfaces.handler import RoundHandler as RoundHandler
    from elastic_core.interfaces.node import Member as Member
    from elastic_core.interfaces.node import Node as Node
    from elastic_core.interfaces.node import Round as Round
    from elastic_core.rendezvous.handler import DynamicRendezvousHandler as DynamicRendezvousHandler
    from elastic_core.rendezvous.handler import create_handler as create_handler
    from elastic_core.rendezvous.registry import RendezvousHandlerCreator as RendezvousHandlerCreator
    from elastic_core.rendezvous.registry import RendezvousHandlerRegistry as RendezvousHandlerRegistry
    from elastic_core.rendezvous.registry import get_rendezvous_handler as get_rendezvous_handler
    from elastic_core.rendezvous.registry import rendezvous_handler_registry as rendezvous_handler_registry
    from elastic_core.rendezvous.round_stores import PrefixedStore as PrefixedStore
    from elastic_core.rendezvous.round_stores import PrefixedStores as PrefixedStores
    from elastic_core.rendezvous.settings import RendezvousSettings as RendezvousSettings
    from elastic_core.rendezvous.settings import RendezvousTimeout as RendezvousTimeout
    from elastic_core.rendezvous.store_backend import StoreBackend as StoreBackend

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__)
    __all__ = __dir__()

"""Makes rendezvous backends from registered stores and from entry points for torchrun.

A store's backend is a `StoreBackend` with the store's name and options.

An entry point for torchrun (in the group `torchrun.handlers`) is a function that returns a creator. The creator takes
the parameters and returns the handler. The entry point's module is imported only when a user selects the backend,
because it usually imports torch. The handler's errors are recognized by class name and replaced with elastic-core's.

By default, torch's dynamic handler shares one store with the workers of every round. Workers would find the addresses
of dead peers in this store. After rank 0 fails or a node joins, the members would get different addresses for the
store. While the variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set, rank 0 instead gives all members of a round the
same address, with a new port. The handler reads this variable in each call."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from elastic_core.errors import (
    ConfigurationError,
    ElasticError,
    Problem,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.hooks.discovery import HANDLERS_GROUP
from elastic_core.hooks.records import BACKEND_OPTIONS, Option, RendezvousBackendRecord
from elastic_core.interfaces.handler import RendezvousHandler
from elastic_core.support.sockets import split_host_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastic_core.config import Settings
    from elastic_core.hooks.discovery import Candidate
    from elastic_core.hooks.records import Context, StoreRecord
    from elastic_core.interfaces.backend import Store
    from elastic_core.interfaces.handler import RendezvousInfo, RendezvousParameters
    from elastic_core.rendezvous.store_backend import StoreBackend


OUTAGE_GRACE = Option(
    "outage_grace",
    float,
    30.0,
    "how long workers keep running after the failure timeout if no node can reach the store",
    "seconds",
    least=0,
)
_PLACES = (("endpoint",), ("url",), ("path",), ("host", "port"))


def of_store(store: StoreRecord) -> RendezvousBackendRecord:
    """Return the record of a rendezvous backend that uses the store. `--rdzv-endpoint` sets the store's option
    `endpoint`, `url` or `path`, whichever exists, or the options `host` and `port`. Without that flag, these options
    keep their defaults."""
    shared = (*BACKEND_OPTIONS, OUTAGE_GRACE)
    taken = {option.name for option in shared} | set(_place(store) or ())
    own = None if store.options is None else [option for option in store.options if option.name not in taken]
    return RendezvousBackendRecord(
        store.name,
        f"nodes meet at {store.summary}",
        partial(_handler, store),
        None if own is None else (*shared, *own),
        store.aliases,
        open_backend=partial(_backend, store, observes=True),
        forkable=False,  # it is unknown whether its client survives a fork
        defaults=store.defaults,
        problems=partial(_store_problems, store),
        hosts_of=store.hosts_of,
    )


def _store_problems(store: StoreRecord, settings: Settings) -> Iterator[Problem]:
    try:
        _endpoint(settings.rdzv_endpoint, _place(store))
    except ConfigurationError as error:
        yield from error.problems
    if store.problems is not None:
        yield from store.problems(settings)


def _place(store: StoreRecord) -> tuple[str, ...] | None:
    """Return the names of the store's options for its address, or None if it has no such options."""
    declared = None if store.options is None else {option.name for option in store.options}
    return next((names for names in _PLACES if declared is None or declared >= set(names)), None)


def _handler(record: StoreRecord, context: Context, params: RendezvousParameters) -> RendezvousHandler:
    from elastic_core.rendezvous.handler import create_handler
    from elastic_core.rendezvous.round_stores import MadeStores
    from elastic_core.rendezvous.settings import advertised_address

    address = partial(advertised_address, params, () if _place(record) == ("path",) else None)
    stores = MadeStores(partial(_of_round, record, context, params), address)
    return create_handler(None, _backend(record, context, params), params, stores, params.backend)


def _backend(
    record: StoreRecord, context: Context, params: RendezvousParameters, observes: bool = False
) -> StoreBackend:
    from elastic_core.rendezvous.settings import options_of
    from elastic_core.rendezvous.store_backend import StoreBackend
    from elastic_core.rendezvous.store_connection import FactoryConnector

    _options(record, params)  # report invalid options before connecting
    grace = options_of(params, (OUTAGE_GRACE,))[OUTAGE_GRACE.name]
    where = params.endpoint or record.name
    connector = FactoryConnector(partial(_store, record, context, params), where, grace)
    return StoreBackend(connector, params.run_id, record.name, observes=observes)


def _store(record: StoreRecord, context: Context, params: RendezvousParameters) -> Store:
    added = {name: value for name, value in context.options.items() if name not in params.config}
    return record.factory(replace(context, options=MappingProxyType({**added, **_options(record, params)})))


def _of_round(record: StoreRecord, context: Context, params: RendezvousParameters, name: str) -> Store:
    from elastic_core.rendezvous.round_stores import StoreOnFirstUse

    return cast("Store", StoreOnFirstUse(partial(_store, record, context, params), f"elastic/{params.run_id}/{name}"))


def _options(record: StoreRecord, params: RendezvousParameters) -> dict[str, Any]:
    """Return the store's options. Raises ConfigurationError if the endpoint does not fit the store."""
    defaults = {option.name: option.default for option in record.options or ()}
    given = {name: value for name, value in params.config.items() if record.options is None or name in defaults}
    return {**defaults, **given, **_endpoint(params.endpoint, _place(record))}


def _endpoint(endpoint: str, place: tuple[str, ...] | None) -> dict[str, Any]:
    if not endpoint:
        return {}
    if place is not None and len(place) == 1:
        return {place[0]: endpoint}
    try:
        if place is None:
            raise ValueError("the store does not use an endpoint")
        host, port = split_host_port(endpoint, 0)  # 0: no port
    except ValueError as error:
        raise ConfigurationError(
            Problem("--rdzv-endpoint", f"cannot use {endpoint!r} for the store: {error}")
        ) from error
    return {"host": host, "port": port} if port else {"host": host}


NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

_OURS: dict[str, type[RendezvousError]] = {
    "DistError": RendezvousConnectionError,  # from torch's stores, where its handlers look up rank 0's address
    "RendezvousClosedError": RendezvousClosedError,
    "RendezvousConnectionError": RendezvousConnectionError,
    "RendezvousError": RendezvousError,
    "RendezvousGracefulExitError": RendezvousGracefulExitError,
    "RendezvousStateError": RendezvousStateError,
    "RendezvousTimeoutError": RendezvousTimeoutError,
}


_lock = threading.Lock()
_calls = 0  # running calls that need the variable and for which this module has set it


@contextlib.contextmanager
def store_not_shared() -> Iterator[None]:
    """Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE while torch chooses the workers' store, unless the user has set it.
    Workers do not inherit the variable, because their environment was copied earlier, and no worker starts in the
    meantime. Thread-safe. If several jobs' calls overlap, the last call to end removes the variable."""
    global _calls
    with _lock:
        ours = _calls > 0 or NOT_SHARED not in os.environ
        if ours:
            _calls += 1
            os.environ[NOT_SHARED] = "1"
    try:
        yield
    finally:
        with _lock:
            if ours:
                _calls -= 1
                if _calls == 0:
                    os.environ.pop(NOT_SHARED, None)


class TorchrunHandler(RendezvousHandler):
    """Adapts a handler that was written for torchrun. Replaces the handler's errors with elastic-core's, and prevents
    torch's own handlers from sharing one store with the workers of all rounds. If a handler reports a shared store
    nevertheless, the agent uses that store.

    Args:
        foreign: the handler, with the methods of torch's RendezvousHandler; older handlers lack `use_agent_store`.
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
        """Always None, because the store may end when the first node finishes. Unlike in torchrun, there is no exit
        barrier that makes that node wait for the other nodes."""

    def shutdown(self) -> bool:
        """Shut down the wrapped handler only if this node has closed the job, because shutting down torch's handlers
        closes the job for all nodes. If a node only leaves, its resources are released when its process ends."""
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
    """Replace an error with elastic-core's error of the same class name. The name of a base class also matches."""
    try:
        yield
    except ElasticError:
        raise
    except Exception as error:
        ours = next((_OURS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _OURS), None)
        if ours is None:
            raise
        raise ours(str(error) or _default_message(ours)) from error


def _default_message(kind: type[RendezvousError]) -> str:
    """Return a message for an error that torch's handlers raise without one."""
    if issubclass(kind, RendezvousClosedError):
        return "the job was closed; the rendezvous handler does not report by which node"
    return f"the rendezvous handler raised {kind.__name__} without a message"


def of_handler(candidate: Candidate) -> RendezvousBackendRecord:
    """Return a backend for the entry point. The backend accepts any option, and gets its value as a string."""

    def create(context: Context, params: RendezvousParameters) -> RendezvousHandler:
        creator = candidate.load()()
        if not callable(creator):
            raise TypeError(f"{candidate.target}() must return a function, but returned {creator!r}")
        with _our_errors(), store_not_shared():
            return TorchrunHandler(creator(params))

    summary = f"written for torchrun ({HANDLERS_GROUP})"
    return RendezvousBackendRecord(candidate.source.plugin, summary, create, options=None)

"""The rendezvous backend that a registered store brings: `OverStore` on it, by the same name and with its options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.backend_options import BACKEND_OPTIONS
from elastic_core.hooks.records import Option, RendezvousBackendRecord
from elastic_core.support.addresses import split_host_port

if TYPE_CHECKING:
    from elastic_core.hooks.context import Context
    from elastic_core.hooks.records import StoreRecord
    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters
    from elastic_core.interfaces.store import Store
    from elastic_core.rendezvous.over_store import OverStore

OUTAGE_GRACE = Option(
    "outage_grace",
    float,
    30.0,
    "time that workers are kept while the store answers no node, beyond that after which others call a node gone",
    "seconds",
    least=0,
)
_PLACES = (("endpoint",), ("url",), ("path",), ("host", "port"))
_NO_PORT = 0


def record_of(store: StoreRecord) -> RendezvousBackendRecord:
    """The record of the backend. `--rdzv-endpoint` becomes the option `endpoint`, `url` or `path` of the store,
    whichever it has, or `host` and `port`; where none is given, these have their defaults."""
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
        forkable=False,  # what its client has open is unknown
        defaults=store.defaults,
        problems=store.problems,
        hosts_of=store.hosts_of,
    )


def _place(store: StoreRecord) -> tuple[str, ...] | None:
    """The options that tell the store where it is; None: it has none. A store with several gets the first."""
    declared = None if store.options is None else {option.name for option in store.options}
    return next((names for names in _PLACES if declared is None or declared >= set(names)), None)


def _handler(record: StoreRecord, context: Context, params: RendezvousParameters) -> RendezvousHandler:
    from elastic_core.rendezvous.handler import create_handler
    from elastic_core.rendezvous.round_stores import MadeStores
    from elastic_core.rendezvous.settings import advertised_address

    address = partial(advertised_address, params, () if _place(record) == ("path",) else None)
    stores = MadeStores(partial(_of_round, record, context, params), address)
    return create_handler(None, _backend(record, context, params), params, stores, params.backend)


def _backend(record: StoreRecord, context: Context, params: RendezvousParameters, observes: bool = False) -> OverStore:
    from elastic_core.rendezvous.over_store import OverStore
    from elastic_core.rendezvous.settings import options_of
    from elastic_core.rendezvous.store_connection import FactoryConnector

    _options(record, params)  # impossible options are an error before anything is tried
    grace = options_of(params, (OUTAGE_GRACE,))[OUTAGE_GRACE.name]
    where = params.endpoint or record.name
    connector = FactoryConnector(partial(_store, record, context, params), where, grace)
    return OverStore(connector, params.run_id, record.name, observes=observes)


def _store(record: StoreRecord, context: Context, params: RendezvousParameters) -> Store:
    added = {name: value for name, value in context.options.items() if name not in params.config}
    return record.factory(replace(context, options={**added, **_options(record, params)}))


def _of_round(record: StoreRecord, context: Context, params: RendezvousParameters, name: str) -> Store:
    from elastic_core.rendezvous.round_stores import LateStore

    return cast("Store", LateStore(partial(_store, record, context, params), f"elastic/{params.run_id}/{name}"))


def _options(record: StoreRecord, params: RendezvousParameters) -> dict[str, Any]:
    """What the store is made with. Raises ConfigurationError: it cannot take the endpoint."""
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
            raise ValueError(f"found {endpoint!r}, and a store that takes no place")
        host, port = split_host_port(endpoint, _NO_PORT)
    except ValueError as error:
        found = f"expected a place of the store, {error}"
        raise ConfigurationError(Problem("--rdzv-endpoint", found)) from error
    return {"host": host, "port": port} if port else {"host": host}

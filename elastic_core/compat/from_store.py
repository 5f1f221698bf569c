"""Makes a rendezvous backend from a registered store. The backend is a `StoreBackend` with the store's name and
options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.options import BACKEND_OPTIONS
from elastic_core.hooks.records import Option, RendezvousBackendRecord
from elastic_core.support.addresses import split_host_port

if TYPE_CHECKING:
    from elastic_core.hooks.records import Context, StoreRecord
    from elastic_core.interfaces.backend import Store
    from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters
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


def record_of(store: StoreRecord) -> RendezvousBackendRecord:
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
        problems=store.problems,
        hosts_of=store.hosts_of,
    )


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
    return record.factory(replace(context, options={**added, **_options(record, params)}))


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

"""The backend, and its creation from parameters: a node's backend with the stores of its rounds, an observing backend,
and a TCPStore."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_c10d.connection import CONNECT_TIMEOUT, SharedConnector, as_connector
from elastic_c10d.endpoint import Endpoint, parse_endpoint, parse_endpoints
from elastic_c10d.plugin import C10D
from elastic_c10d.tcp_connector import PATIENCE, HostElection, TcpConnector
from elastic_c10d.torch_store import distributed, lazy_store
from elastic_core.plugin import (
    ConfigurationError,
    PortReservation,
    Problem,
    RendezvousConnectionError,
    StoreBackend,
    advertised_address,
    get_logger,
    is_loopback_address,
    means_this_machine,
    open_to_append,
    options_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.plugin import Duration, MadeStores, RendezvousParameters, Store, StoreConnector

_LENGTH = struct.Struct("=I")  # a FileStore's file starts with the length of the first key
_LONGEST_KEY = 4096
_FILE_MODE = 0o600
_SERVED = 1000  # the number of nodes for which to size a server that is created as a store


class C10dRendezvousBackend(StoreBackend):
    """A rendezvous backend over any torch store. See `StoreBackend`.

    Args:
        store: a TCPStore, FileStore or HashStore, which may be wrapped in PrefixStores, or a `StoreConnector`. The
            backend closes a connector, but the caller still owns a store.
        run_id: the job's run id; jobs with different ids are isolated from each other within a store.
    """

    def __init__(self, store: Store | StoreConnector, run_id: str, observes: bool = False) -> None:
        connector = as_connector(store)
        mover = connector if isinstance(connector, TcpConnector) else None
        super().__init__(connector, run_id, "c10d", observes=observes, mover=mover)


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Store]:
    """Create a connected backend, and return it with its store. The caller should use the store with a key prefix.

    The record of `c10d` in `elastic_c10d.plugin` lists the options that `params` may contain.

    Raises:
        ConfigurationError: the endpoint or an option is invalid.
        RendezvousConnectionError: the store could not be reached in time. The limit is the first of these options that
            is set: `connect_timeout`, `read_timeout`, `join_timeout`.
    """
    options = options_of(params, C10D)
    bounds = (options["connect_timeout"], params.get("read_timeout"), options["join_timeout"])  # in torch's order
    patience = next(float(bound) for bound in bounds if bound is not None)
    connector = connector_for(params, options, patience)
    backend = C10dRendezvousBackend(connector, params.run_id)
    try:
        backend.connect()
        return backend, connector.connect(aside=True).store
    except BaseException:
        backend.close()
        raise


def create_parts(params: RendezvousParameters, master: str = "") -> tuple[C10dRendezvousBackend, MadeStores]:
    """Create a backend that connects on first use, and the stores of its rounds. Each attempt to connect takes about
    `PATIENCE` seconds.

    Args:
        master: the host at which this node's workers reach the workers' store; see `MadeStores`.

    Raises:
        ConfigurationError: the endpoint or an option is invalid.
    """
    # An attempt must fail before the overall timeout expires, because that timeout's message would not contain the
    # reason for the failure.
    options = options_of(params, C10D)
    half = min(options["join_timeout"], options["connect_timeout"] or math.inf) / 2
    connector = connector_for(params, options, min(PATIENCE, half), half)
    backend = C10dRendezvousBackend(connector, params.run_id)

    def address() -> str:
        if not isinstance(connector, TcpConnector):
            return advertised_address(params, ())
        return connector.local_address or advertised_address(params)

    return backend, round_stores(connector, params.run_id, address, master)


def round_stores(connector: StoreConnector, run_id: str, address: Callable[[], str], host: str = "") -> MadeStores:
    """Return an object that creates each round's stores. The members' store is the rendezvous store with a key prefix
    for the round. It connects on first use.

    Args:
        connector: connects to the rendezvous store.
        run_id: the job's run id.
        address: returns the address that this node advertises. Called only when needed, because finding the address may
            require a connection.
        host: see `MadeStores`.
    """

    from elastic_core.plugin import MadeStores  # imported only where a node joins

    def members_store(name: str) -> Store:
        torchs = distributed()
        shared = connector.connect(aside=True).store
        if isinstance(shared, torchs.FileStore):
            shared = torchs.FileStore(shared.path, -1)  # a separate connection, so that the members can set its timeout
        store: Store = torchs.PrefixStore(f"elastic/{run_id}/round/{name}", shared)
        return store

    return MadeStores(lambda name: lazy_store(lambda: members_store(name)), address, host)


def connector_for(
    params: RendezvousParameters, options: Mapping[str, Any], patience: Duration, longest: Duration = math.inf
) -> StoreConnector:
    """Create the connector that these typed options describe. A listener must answer within `longest` seconds. Raises
    ConfigurationError if an option or the endpoint is invalid."""
    kind = options["store_type"].lower()
    if kind == "file":
        return file_connector(params.endpoint)
    if kind != "tcp":
        raise ConfigurationError(Problem("--rdzv-conf: store_type", f"expected tcp or file, found {kind!r}"))
    endpoint, reservation = _meeting_place(params)
    if params.max_nodes > 1:
        _warn_of_loopback(endpoint, params.max_nodes, is_master=bool(options["is_host"]))
    return TcpConnector(
        endpoint,
        HostElection(endpoint, options["is_host"], params.max_nodes, reservation=reservation),
        patience,
        min(CONNECT_TIMEOUT, longest),
        options["read_timeout"],
        grace=options["outage_grace"],
        local_addr=params.local_addr or "",
    )


def _meeting_place(params: RendezvousParameters) -> tuple[Endpoint, PortReservation | None]:
    """Return the endpoint and, if this process chooses the port, its reservation. A single-node job uses any free port
    if the port is 0 or no endpoint is set."""
    alone = params.max_nodes == 1
    endpoint = parse_endpoints(params.endpoint or ("localhost:0" if alone else ""), least_port=0 if alone else 1)
    if not alone and means_this_machine(endpoint.host) and not is_loopback_address(endpoint.host):
        # The store's host may use localhost or 0.0.0.0 as the endpoint, while other nodes use the host's name.
        endpoint = replace(endpoint, host="localhost", is_open=True)
    if endpoint.port:
        return endpoint, None
    reservation = PortReservation()
    return replace(endpoint, port=reservation.port), reservation


def _warn_of_loopback(endpoint: Endpoint, nodes: int, is_master: bool) -> None:
    log = get_logger(endpoint=str(endpoint), max_nodes=nodes)
    if endpoint.is_open and not is_master:
        advice = "valid only on the store's host; on all other machines, use its name or address"
        log.info("rendezvous endpoint is localhost", advice=advice)
    elif endpoint.is_loopback:
        advice = "no other machine can reach it; fine if all nodes are on this machine"
        log.warning("rendezvous endpoint is loopback", advice=advice)


def file_connector(path: str) -> SharedConnector:
    """Create a connector for a FileStore on a shared disk. Raises ConfigurationError if the file is unusable."""
    folder = Path(path).parent
    if not path or not folder.is_dir():
        found = f"; the folder of {path!r} does not exist" if path else ""
        raise ConfigurationError(
            Problem("--rdzv-endpoint", f"a file store requires the path of a file that all nodes share{found}")
        )
    try:
        # torch would retry for minutes. Access is restricted, because a user who can write the file can join the job.
        with open(open_to_append(Path(path), _FILE_MODE, os.O_RDWR), "rb") as file:
            file.seek(0)
            head = file.read(_LENGTH.size)
    except OSError as error:
        raise ConfigurationError(
            Problem("--rdzv-endpoint", f"cannot write the file {path!r}: {error.strerror}")
        ) from error
    if head and (len(head) < _LENGTH.size or _LENGTH.unpack(head)[0] > _LONGEST_KEY):  # torch would hang
        raise ConfigurationError(
            Problem("--rdzv-endpoint", f"the file {path!r} is not a torch FileStore (it starts with {head!r})")
        )
    return SharedConnector(distributed().FileStore(path, -1), path)


def open_backend(params: RendezvousParameters) -> C10dRendezvousBackend:
    """Create a backend that observes a job and never hosts its store. The backend connects on first use, within
    `join_timeout` seconds.

    Raises:
        ConfigurationError: the endpoint is invalid.
        RendezvousConnectionError: the file does not exist.
    """
    distributed()  # so that the time limit does not include the import
    options = options_of(params, C10D)
    patience = options["join_timeout"]
    connector: StoreConnector
    if options["store_type"].lower() != "file":
        endpoint, longest = parse_endpoints(params.endpoint), min(CONNECT_TIMEOUT, patience)
        connector = TcpConnector(endpoint, None, patience, longest, options["read_timeout"])
    elif Path(params.endpoint).is_file():
        connector = file_connector(params.endpoint)
    else:
        raise RendezvousConnectionError(f"the store's file {params.endpoint} does not exist")
    return C10dRendezvousBackend(connector, params.run_id, observes=True)


def tcp_store(options: Mapping[str, Any]) -> Store:
    """Create a TCPStore client and, if `is_host` is True, the server in this process. If `is_host` is None, the server
    is created only if the endpoint can be bound. The server runs for as long as the returned store exists.

    Raises:
        ConfigurationError: the host is invalid.
        RendezvousConnectionError: the store could not be created within `timeout` seconds.
    """
    endpoint = Endpoint(parse_endpoint(options["host"], "host").host, options["port"])
    hosting = HostElection(endpoint, options["is_host"], _SERVED)
    connector = TcpConnector(endpoint, hosting, patience=options["timeout"])
    try:
        store = connector.connect().store
    except BaseException:
        connector.close()
        raise
    store.set_timeout(timedelta(seconds=options["timeout"]))
    return hosting.server or store

"""From parameters to a backend and what belongs to it. All problems of the parameters at once."""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_c10d.backend import C10dRendezvousBackend
from elastic_c10d.connector import CONNECT_TIMEOUT, READ_TIMEOUT, SharedConnector
from elastic_c10d.endpoint import Endpoint, parse_endpoint
from elastic_c10d.hosting import Hosting
from elastic_c10d.round_stores import C10dRoundStores
from elastic_c10d.tcp_connector import PATIENCE, TcpConnector
from elastic_c10d.torch_import import distributed
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import get_logger
from elastic_core.own_address import own_address_towards

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_c10d.connector import Connector
    from elastic_c10d.torch_store import Store
    from elastic_core.clock import Duration
    from elastic_core.interfaces.handler import RendezvousParameters

_JOIN: Duration = 600.0
_NOWHERE = ("192.0.2.1", 9)  # an address for documentation; nothing is sent there


@dataclass(frozen=True)
class Parts:
    """What a handler is made of. Nothing is connected yet."""

    backend: C10dRendezvousBackend
    stores: C10dRoundStores


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Store]:
    """A backend that is connected, and the store that it is connected to, whose keys the caller is to prefix.

    Options of `params`: see the record of `c10d` in `elastic_c10d.plugin`; those not given have their defaults.

    Raises:
        ConfigurationError: the endpoint or an option cannot be.
        RendezvousConnectionError: the store could not be reached within `join_timeout`.
    """
    connector = connector_for(params, _seconds(params, "join_timeout", _JOIN))
    backend = C10dRendezvousBackend(connector, params.run_id)
    try:
        backend.connect()
        return backend, connector.connect(aside=True).store
    except BaseException:
        backend.close()
        raise


def create_parts(params: RendezvousParameters, patience: Duration = PATIENCE) -> Parts:
    """A backend that connects when it is first used, giving up each time after about `patience` seconds; and the stores
    of its rounds.

    Raises:
        ConfigurationError: the endpoint or an option cannot be.
    """
    # An error that comes after the join timeout could not be told: who gives up says only that nothing answered.
    half = _seconds(params, "join_timeout", _JOIN) / 2
    connector = connector_for(params, min(patience, half), half)
    backend = C10dRendezvousBackend(connector, params.run_id)
    return Parts(backend, C10dRoundStores(connector, params.run_id, _advertised(params, connector)))


def connector_for(params: RendezvousParameters, patience: Duration, longest: Duration = math.inf) -> Connector:
    """The connector that the options ask for; a listener has `longest` seconds at most to answer. Raises
    ConfigurationError."""
    kind = params.get("store_type") or "tcp"
    if kind == "file":
        return file_connector(params.endpoint)
    if kind != "tcp":
        raise ConfigurationError(Problem("--rdzv-conf: store_type", f"expected tcp or file, found {kind!r}"))
    endpoint = parse_endpoint(params.endpoint)
    if endpoint.is_loopback and params.max_nodes > 1:
        get_logger(endpoint=str(endpoint), max_nodes=params.max_nodes).warning(
            "endpoint is loopback", advice="no other machine can reach it; fine if all nodes are on this one"
        )
    return TcpConnector(
        endpoint,
        Hosting(endpoint, _is_host(params), params.max_nodes),
        patience,
        min(_seconds(params, "connect_timeout", CONNECT_TIMEOUT), longest),
        _seconds(params, "read_timeout", READ_TIMEOUT),
    )


def file_connector(path: str) -> SharedConnector:
    """A FileStore, in a file on a disk that all nodes share. Raises ConfigurationError."""
    folder = Path(path).parent
    if not path or not folder.is_dir():
        found = f"found {path!r}, whose folder does not exist" if path else "found none"
        raise ConfigurationError(
            Problem("--rdzv-endpoint", f"expected the path of a file that all nodes share (store_type file), {found}")
        )
    try:
        with open(path, "ab"):
            pass  # torch would try for minutes
    except OSError as error:
        raise ConfigurationError(
            Problem("--rdzv-endpoint", f"expected a file that can be written, found {path!r}: {error.strerror}")
        ) from error
    return SharedConnector(distributed().FileStore(path, -1), path)


def _advertised(params: RendezvousParameters, connector: Connector) -> Callable[[], str]:
    def address() -> str:
        if params.local_addr:
            return params.local_addr
        if isinstance(connector, TcpConnector) and connector.local_address:
            return connector.local_address
        if params.max_nodes == 1:
            return "127.0.0.1"
        return own_address_towards(*_NOWHERE) or socket.gethostname()

    return address


def _is_host(params: RendezvousParameters) -> bool | None:
    try:
        return params.get_as_bool("is_host")
    except ValueError as error:
        raise ConfigurationError(Problem("--rdzv-conf: is_host", str(error))) from error


def _seconds(params: RendezvousParameters, name: str, default: Duration) -> Duration:
    value = params.get(name)
    try:
        seconds = default if value is None else float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not seconds > 0:
        raise ConfigurationError(Problem(f"--rdzv-conf: {name}", f"expected seconds above 0, found {value!r}"))
    return seconds


__all__ = ["Endpoint", "Parts", "connector_for", "create_backend", "create_parts", "file_connector"]

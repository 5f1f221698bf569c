"""The backend for who looks at a job from outside: a client of a store that stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from elastic_c10d.backend import C10dRendezvousBackend
from elastic_c10d.connector import CONNECT_TIMEOUT, READ_TIMEOUT
from elastic_c10d.create import file_connector
from elastic_c10d.endpoint import parse_endpoint
from elastic_c10d.tcp_connector import TcpConnector
from elastic_c10d.torch_import import distributed
from elastic_core.errors import RendezvousConnectionError

if TYPE_CHECKING:
    from elastic_c10d.connector import Connector
    from elastic_core.interfaces.handler import RendezvousParameters


def open_backend(params: RendezvousParameters) -> C10dRendezvousBackend:
    """The backend of a job, which is never the host of the store. It connects when it is first used, for which it has
    `join_timeout` seconds.

    Raises:
        ConfigurationError: the endpoint cannot be one.
        RendezvousConnectionError: the file is not there.
    """
    distributed()  # the time that the import takes is not the store's
    return C10dRendezvousBackend(_connector(params), params.run_id, observes=True)


def _connector(params: RendezvousParameters) -> Connector:
    patience = float(params.get("join_timeout"))
    if params.get("store_type") == "file":
        if not Path(params.endpoint).is_file():
            raise RendezvousConnectionError(f"expected the file of a store, found none at {params.endpoint}")
        return file_connector(params.endpoint)
    return TcpConnector(
        parse_endpoint(params.endpoint),
        None,
        patience,
        min(params.get("connect_timeout") or CONNECT_TIMEOUT, patience),
        params.get("read_timeout") or READ_TIMEOUT,
    )

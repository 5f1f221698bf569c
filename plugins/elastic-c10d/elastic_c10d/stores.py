"""The store `tcp` for whoever asks for one by name."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from elastic_c10d.hosting import Hosting
from elastic_c10d.tcp_connector import TcpConnector

if TYPE_CHECKING:
    from elastic_c10d.endpoint import Endpoint
    from elastic_c10d.torch_store import Store
    from elastic_core.clock import Duration

_NODES = 1000


def tcp_store(endpoint: Endpoint, is_host: bool | None, timeout: Duration) -> Store:
    """A TCPStore client, with the server in this process where `is_host` says so (None: if the endpoint can be bound).
    The server lives as long as the store.

    Raises:
        RendezvousConnectionError: there is none to be had within `timeout` seconds.
    """
    hosting = Hosting(endpoint, is_host, _NODES)
    connector = TcpConnector(endpoint, hosting, patience=timeout)
    try:
        store = connector.connect().store
    except BaseException:
        connector.close()
        raise
    store.set_timeout(timedelta(seconds=timeout))  # type: ignore[attr-defined]
    return hosting.server or store

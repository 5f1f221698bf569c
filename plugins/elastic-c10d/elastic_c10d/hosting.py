"""Who hosts the store of an endpoint, decided by doing rather than by comparing names.

Who can bind the endpoint's address and listen there hosts; everybody else, on the same machine too, finds the port
taken or the address foreign. Whether the endpoint really leads to the server just started (it might be translated to
another machine's, or be one of several addresses of a name) is checked with a nonce that is read through the endpoint.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from elastic_c10d.address import is_local, plain
from elastic_c10d.keys import peek
from elastic_c10d.server import allow_connections, bind_for, start_server
from elastic_core.errors import RendezvousConnectionError
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_c10d.address import Address
    from elastic_c10d.endpoint import Endpoint
    from elastic_c10d.torch_store import Store

_NONCE_KEY = "elastic/host"


class Hosting:
    """One node's part in deciding, until it is decided; then the server, if it is here.

    Args:
        endpoint: where the store belongs.
        is_host: True: it must be here; False: it must not; None: whoever can.
        max_nodes: the nodes to have room for.
    """

    def __init__(self, endpoint: Endpoint, is_host: bool | None, max_nodes: int) -> None:
        self._endpoint = endpoint
        self._is_host = is_host
        self._max_nodes = max_nodes
        self._nonce = secrets.token_hex(8).encode()
        self._server: Store | None = None

    @property
    def server(self) -> Store | None:
        """Our server, as a store that can be used like any other."""
        return self._server

    @property
    def here(self) -> bool:
        """Whether a server of ours runs."""
        return self._server is not None

    def offer(self, addresses: Sequence[Address]) -> None:
        """Start a server if it is for us to do so.

        Raises:
            RendezvousConnectionError: it must be here, and cannot.
        """
        if self._server is not None or self._is_host is False:
            return
        own = [address for address in addresses if is_local(address)]
        if own or self._is_host:
            self._start(own or addresses)

    def confirm(self, store: Store) -> bool:
        """Whether the store that the endpoint led to is to be used: always, if we have no server; else it must be ours.
        If it is another's, our server ends.

        Raises:
            RendezvousConnectionError: it must be ours.
        """
        if self._server is None:
            return True
        if peek(store, _NONCE_KEY) == self._nonce:
            get_logger(endpoint=str(self._endpoint)).info("store hosted")
            return True
        self.stop()
        if self._is_host:
            raise RendezvousConnectionError(
                f"expected {self._endpoint} to lead to the store hosted here (is_host), found another one there; "
                "give the endpoint an address of this machine, or leave is_host out"
            )
        self._is_host = False
        return False

    def stop(self) -> None:
        """End the server, if there is one. Idempotent."""
        self._server = None

    def _start(self, addresses: Sequence[Address]) -> None:
        try:
            bound = bind_for(self._endpoint, addresses)
        except OSError as error:
            if self._is_host:
                raise RendezvousConnectionError(
                    f"expected to host the store at {self._endpoint} (is_host), found that it cannot be had: "
                    f"{plain(error)}; ss -ltnp shows who listens there"
                ) from error
            return  # somebody else's, on this machine; or not ours to take
        allow_connections(self._max_nodes)
        server = start_server(bound)
        server.set(_NONCE_KEY, self._nonce.decode())
        self._server = server

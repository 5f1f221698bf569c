"""The TCPStore server of `elastic serve`.

torch's server limits neither the amount of data nor the number of connections. `OverloadWatch` therefore replaces the
server if the process grows too much or runs out of file descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from elastic_c10d.connection import accepted
from elastic_c10d.endpoint import Endpoint, parse_endpoints
from elastic_c10d.tcp_connector import resolved
from elastic_c10d.torch_store import allow_connections, bind_for, start_server
from elastic_core.plugin import (
    ConfigurationError,
    Problem,
    error_text,
    get_logger,
    is_local_address,
    resolve_host,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.plugin import Duration, Store

MOST_BYTES = 512 << 20
"""Maximum growth of the process in bytes. Nodes write far less, because the size of their records is limited."""

_LOOK_EVERY: Duration = 1.0
_MIB = 1 << 20


def own_memory() -> int:
    """Return this process's private memory in bytes, or all its memory on a system that does not report how much is
    shared. Raises OSError if no file descriptor is left to read it."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


class OverloadWatch:
    """Replaces the server if the process grows too much or the server has too many connections. A thread checks both at
    regular intervals. The new server is empty, so nodes treat the replacement as an outage. If the process does not
    shrink, something other than the store has grown. Growth is then measured from the new size.

    Args:
        renew: replaces the server. Called again if it returns False.
        port: the server's port.
        connections: maximum number of connections.
        most: maximum growth in bytes.
        size: returns the size of the process in bytes.
        every: seconds between checks.
    """

    def __init__(
        self,
        renew: Callable[[], bool],
        port: int,
        connections: int,
        most: int = MOST_BYTES,
        size: Callable[[], int] = own_memory,
        every: Duration = _LOOK_EVERY,
    ) -> None:
        self._renew = renew
        self._port = port
        self._connections = connections
        self._most = most
        self._size = size
        self._every = every
        self._least = 0
        self._spare: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="store-flood-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            self._least = self._size()
        except (OSError, psutil.Error):  # not supported on this system
            return
        self._keep_spare()
        while not self._ended.wait(self._every):
            if self._is_flooded():
                self._replace()
            self._keep_spare()
        for file in self._spare:
            os.close(file)

    def _is_flooded(self) -> bool:
        try:
            return self._is_too_much()
        except OSError as error:
            if error.errno != errno.EMFILE:
                return False
        try:  # the files may be used up by something other than connections
            os.close(self._spare.pop())
            return self._is_too_much()
        except (IndexError, OSError):
            return True  # another client has used the spare descriptor as well

    def _is_too_much(self) -> bool:
        """Return whether the server exceeds a limit. Raises OSError if that cannot be determined."""
        if self._grown() > self._most:
            return True
        return psutil.Process().num_fds() > self._connections and len(accepted(self._port)) > self._connections

    def _keep_spare(self) -> None:
        """Keep a spare file open. If the process has no descriptors left, a check closes this file in order to run."""
        if self._spare:
            return
        with contextlib.suppress(OSError):
            self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _grown(self) -> int:
        """Return the growth of the process in bytes. Raises OSError if its size cannot be read."""
        now = self._size()
        self._least = min(self._least, now)
        return now - self._least

    def _replace(self) -> None:
        peers = accepted(self._port)
        heaviest = ", ".join(f"{peer} sent {received // _MIB} MiB to port {self._port}" for peer, received in peers[:3])
        log = get_logger(most_mib=self._most // _MIB, most_connections=self._connections)
        with contextlib.suppress(OSError):  # no descriptor is left to read it
            log = log.bind(grown_mib=self._grown() // _MIB, connections=len(peers), heaviest=heaviest)
        log.error("store flooded")
        while not self._renew():
            if self._ended.wait(self._every):
                return
        with contextlib.suppress(AttributeError, OSError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):
            if (grown := self._grown()) > self._most:
                self._least += grown
                log.warning(
                    "process grown", advice="the store is not the cause; a plugin in this process may use the memory"
                )


class StoreServer:
    """The TCPStore server of `elastic serve`, which runs independently of all nodes.

    Args:
        endpoint: one or several `host[:port]`, separated by commas (default port: 29400). The first one that is a name
            or address of this machine is used.
        max_nodes_hint: number of nodes for which to size the server.
    """

    def __init__(self, endpoint: str | Endpoint, max_nodes_hint: int = 1000) -> None:
        named = parse_endpoints(endpoint) if isinstance(endpoint, str) else endpoint
        here = (one for one in named.each if any(map(is_local_address, resolved(one))))
        self._endpoint = next(here, named.each[0])
        self._nodes = max_nodes_hint
        self._store: Store | None = None
        self._watch: OverloadWatch | None = None

    @property
    def endpoint(self) -> str:
        """The address of the server, with the actual port once the server has started."""
        return str(self._endpoint)

    def start(self) -> int:
        """Start the server and return the port.

        Raises:
            ConfigurationError: the endpoint is not an address of this machine, its port is in use, or this process
                cannot open enough files.
        """
        if self._store is not None:
            raise RuntimeError("the server is already running")
        connections = allow_connections(self._nodes)
        sock = self._bound()
        port = int(sock.getsockname()[1])
        self._endpoint = replace(self._endpoint, port=port)
        try:
            self._store = start_server(sock)
        except OSError as error:
            raise self._problem(error_text(error)) from error
        self._watch = OverloadWatch(self._renewed, port, connections)
        return port

    def stop(self) -> None:
        """Stop the server and close all its connections. Idempotent."""
        if self._watch is not None:
            self._watch.stop()
        self._store = None

    def _renewed(self) -> bool:
        self._store = None
        with contextlib.suppress(ConfigurationError, OSError, RuntimeError):  # the caller tries again
            self._store = start_server(self._bound())
        return self._store is not None

    def _bound(self) -> socket.socket:
        try:
            found = resolve_host(self._endpoint.host, self._endpoint.port)
            addresses = [address for address in found if is_local_address(address)]
            if addresses:
                return bind_for(self._endpoint, addresses)
        except socket.gaierror as error:
            raise self._problem(f"unknown name: {error.strerror}") from error
        except OSError as error:
            raise self._problem(f"{error_text(error)}; `ss -ltnp` shows which programs are listening") from error
        raise self._problem("not an address of this machine; run elastic serve on the machine that has this address")

    def _problem(self, reason: str) -> ConfigurationError:
        return ConfigurationError(Problem("--rdzv-endpoint", f"cannot listen on {self._endpoint}: {reason}"))

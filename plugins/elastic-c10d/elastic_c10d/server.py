"""Servers of TCPStores: the socket is bound and listens before torch gets it, so that no port is guessed.

torch's server keeps everything that any client writes, and bounds neither that nor the number of its connections. So
`elastic serve` watches its server and replaces it if the process grows too much or runs short of files: `FloodWatch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_c10d.connection import Accepted, accepted
from elastic_c10d.endpoint import Endpoint, parse_endpoints
from elastic_c10d.torch_store import distributed
from elastic_core.plugin import (
    BACKLOG,
    ConfigurationError,
    Problem,
    bound_everywhere,
    bound_socket,
    error_text,
    get_logger,
    is_local_address,
    joined_host_port,
    resolve_host,
    start_tcp_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_c10d.torch_store import Store
    from elastic_core.plugin import Address, Duration

MOST_BYTES = 512 << 20
"""By how much the process may grow. It is far above what the nodes of a job write, whose records have bounds."""

_LOOK_EVERY: Duration = 1.0
_MIB = 1 << 20
_CONNECTIONS_PER_NODE = 4
_OTHER_FILES = 256
_ROOM = 65_536


def bind_for(endpoint: Endpoint, addresses: Sequence[Address]) -> socket.socket:
    """A socket that listens where the endpoint's store belongs: a loopback endpoint that is not open at its loopback
    address, any other on all addresses, since a machine's own name often resolves to 127.0.1.1, which no other machine
    could reach. Raises OSError, EADDRINUSE if a program listens there."""
    if endpoint.is_loopback:
        own = min(addresses, key=lambda address: address.family != socket.AF_INET)
        sock = bound_socket(own.family, own.sockaddr)
    else:
        sock = bound_everywhere(endpoint.port)
    return _listening(sock)


def _listening(sock: socket.socket) -> socket.socket:
    try:
        sock.listen(BACKLOG)  # of two that are bound, with SO_REUSEADDR, only one may listen
    except OSError:
        sock.close()
        raise
    return sock


def start_server(sock: socket.socket) -> Store:
    """A TCPStore that serves on this socket, which becomes its own, until it is garbage."""
    store: Store = start_tcp_store(sock, distributed())
    return store


def allow_connections(nodes: int) -> int:
    """See that this process may hold the connections of so many nodes, and as many as can be of others, who would use
    up the files that the agent needs. Raises the soft limit if the hard one allows, and tells where nodes need that.
    Returns how many connections are more than nodes need, and leave the agent half of its files."""
    of_nodes = nodes * _CONNECTIONS_PER_NODE
    needed = of_nodes + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(needed, _ROOM)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return max(of_nodes, wanted // 2)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    log = get_logger(needed=needed, before=soft, now=allowed, hard=hard)
    if allowed < needed:
        log.warning("file limit raised", advice="raise the hard limit (ulimit -Hn) where the store's host starts")
    elif soft < needed:
        log.info("file limit raised")
    return max(of_nodes, allowed // 2)


def own_memory() -> int:
    """The bytes that are this process's own. Raises OSError where that cannot be read."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def own_files() -> int:
    """How many files this process has open. Raises OSError where that cannot be read."""
    return len(os.listdir("/proc/self/fd"))


class FloodWatch:
    """Checks once per second, in a thread, whether the process has grown too much, or its server has accepted too many
    connections. If so, an empty server replaces it, which nodes treat as an outage. If the process is still as large,
    something else in it has grown; the watch then measures growth from that size.

    Args:
        renew: replaces the server. Returns whether it could; it is called again if not.
        port: that of the server.
        connections: the most that it may have.
        most: bytes.
        size: how large the process is.
        every: seconds between looks.
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
        """Idempotent."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        try:
            self._least = self._size()
        except OSError:  # there is no such system here
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
        try:  # what has taken the last file may be no connection
            os.close(self._spare.pop())
            return self._is_too_much()
        except (IndexError, OSError):
            return True  # whoever connects has taken that one, too

    def _is_too_much(self) -> bool:
        """Raises OSError."""
        if self._grown() > self._most:
            return True
        return own_files() > self._connections and len(self._accepted()) > self._connections

    def _keep_spare(self) -> None:
        """A file to let go of where there is none to look with."""
        if self._spare:
            return
        with contextlib.suppress(OSError):
            self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _grown(self) -> int:
        """By how many bytes. Raises OSError."""
        now = self._size()
        self._least = min(self._least, now)
        return now - self._least

    def _accepted(self) -> list[Accepted]:
        return [peer for peer in accepted() if peer.port == self._port]

    def _replace(self) -> None:
        peers = self._accepted()
        heaviest = ", ".join(
            f"{joined_host_port(peer.host, peer.its_port)} sent {peer.received // _MIB} MiB to port {peer.port}"
            for peer in peers[:3]
        )
        log = get_logger(most_mib=self._most // _MIB, most_connections=self._connections)
        with contextlib.suppress(OSError):  # no file is left to read it
            log = log.bind(grown_mib=self._grown() // _MIB, connections=len(peers), heaviest=heaviest)
        log.error("store flooded")
        while not self._renew():
            if self._ended.wait(self._every):
                return
        with contextlib.suppress(AttributeError, OSError):  # only GNU's libc has it
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):
            if (grown := self._grown()) > self._most:
                self._least += grown
                log.warning(
                    "process grown", advice="what has grown in this process is no store; a plugin may keep too much"
                )


def _is_here(endpoint: Endpoint) -> bool:
    try:
        return any(map(is_local_address, resolve_host(endpoint.host, endpoint.port)))
    except socket.gaierror:
        return False


class StoreServer:
    """A TCPStore server in this process, for `elastic serve`: it belongs to no node, so it outlives all of them.

    Args:
        endpoint: `host[:port]`, an address or name of this machine; port 29400 if there is none. Of several, with
            commas between them, the first that is this machine's.
        max_nodes_hint: how many nodes to have room for.
    """

    def __init__(self, endpoint: str | Endpoint, max_nodes_hint: int = 1000) -> None:
        named = parse_endpoints(endpoint) if isinstance(endpoint, str) else endpoint
        self._endpoint = next(filter(_is_here, named.each), named.each[0])
        self._nodes = max_nodes_hint
        self._store: Store | None = None
        self._watch: FloodWatch | None = None
        self._port = self._endpoint.port

    @property
    def endpoint(self) -> str:
        """Where it serves, with the port that it has once it is started."""
        return str(Endpoint(self._endpoint.host, self._port))

    def start(self) -> int:
        """Serve from now on. Returns the port.

        Raises:
            ConfigurationError: the endpoint is not this machine's, or its port is taken.
        """
        if self._store is not None:
            raise RuntimeError("expected a server that was not started, found one that serves already")
        connections = allow_connections(self._nodes)
        sock = self._bound()
        self._port = int(sock.getsockname()[1])
        self._store = start_server(sock)
        self._watch = FloodWatch(self._renewed, self._port, connections)
        return self._port

    def stop(self) -> None:
        """End the server and all its connections. Idempotent."""
        if self._watch is not None:
            self._watch.stop()
        self._store = None

    def _renewed(self) -> bool:
        self._store = None
        with contextlib.suppress(ConfigurationError):
            self._store = start_server(self._bound())
        return self._store is not None

    def _bound(self) -> socket.socket:
        try:
            addresses = [
                address for address in resolve_host(self._endpoint.host, self._port) if is_local_address(address)
            ]
            if addresses:
                return bind_for(replace(self._endpoint, port=self._port), addresses)
        except socket.gaierror as error:
            raise self._problem(f"an unknown name: {error.strerror}") from error
        except OSError as error:
            raise self._problem(
                f"that it cannot be had: {error_text(error)}; ss -ltnp shows who listens there"
            ) from error
        raise self._problem("an address of another one; start it there")

    def _problem(self, found: str) -> ConfigurationError:
        expected = f"expected a free endpoint of this machine to serve on, found for {self._endpoint}"
        return ConfigurationError(Problem("--rdzv-endpoint", f"{expected} {found}"))

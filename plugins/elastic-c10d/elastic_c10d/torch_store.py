"""Support for torch's stores: a delayed import of torch, a store that connects on first use, and TCPStore servers. A
server's socket listens before it is passed to torch, so that the port is known to be free.

torch's sockets write a stack trace to stderr for every refused connection and every wait that times out. These traces
are suppressed, because torch also raises the errors and the agent reports them. torch reads its log level only once,
when it is imported.
"""

from __future__ import annotations

import functools
import resource
import socket
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import bound_everywhere, bound_socket, get_logger, import_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from elastic_c10d.endpoint import Endpoint
    from elastic_core.plugin import Address, Store

_PROBES_AFTER, _PROBES_EVERY = 60, 10  # seconds; after nine probes without an answer, the kernel ends the connection
_CONNECTIONS_PER_NODE = 4
_OTHER_FILES = 256
_ROOM = 65_536
_METHODS = (
    "set", "get", "add", "compare_set", "wait", "check", "delete_key", "append", "multi_get", "multi_set",
    "has_extended_api", "list_keys", "queue_push", "queue_pop", "queue_len", "clone",
)  # fmt: skip


def distributed() -> Any:
    """Return the module `torch.distributed`, importing it on first use."""
    return import_with("torch.distributed", "TORCH_CPP_LOG_LEVEL", "FATAL")


def innermost(store: Store) -> Store:
    """Return the store beneath all PrefixStore wrappers."""
    beneath: Store | None = getattr(store, "underlying_store", None)
    return store if beneath is None else innermost(beneath)


def lazy_store(connect: Callable[[], Store]) -> Store:
    """Create a `torch.distributed.Store` that calls `connect` on first use and forwards all operations to the resulting
    store. Most jobs never use the round's store, so the delay saves one connection per node. Thread-safe. Operations
    raise errors from `connect` and from torch.

    Keep a Python reference to the store for as long as it may be used. A PrefixStore or process group holds only the
    C++ object, and fails once the Python object has been deleted.
    """
    store: Store = _class()(connect)
    return store


@functools.cache
def _class() -> Any:
    """Create the class of `lazy_store` on first use, because its base class requires torch."""
    base = distributed().Store

    class LazyStore(base):  # type: ignore[misc, valid-type]
        def __init__(self, connect: Callable[[], Store]) -> None:
            super().__init__()
            self._connect = connect
            self._connecting = threading.Lock()
            self._target: Any = None
            self._patience: timedelta | None = None

        def _passed_on(self) -> Any:
            with self._connecting:
                if self._target is None:
                    self._target = self._connect()
                if self._patience != self.timeout:  # a PrefixStore may have set it in C++ only
                    self._patience = self.timeout
                    self._target.set_timeout(self._patience)
                return self._target

        def _forward(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
            return getattr(self._passed_on(), name)(*args, **kwargs)

        def num_keys(self) -> int:
            target = self._passed_on()
            # torch's num_keys includes other rounds' keys. Older versions cannot list keys.
            return len(target.list_keys()) if hasattr(target, "list_keys") else int(target.num_keys())

        getNumKeys = num_keys  # noqa: N815  # the name by which PrefixStore calls it

    for name in _METHODS:
        setattr(LazyStore, name, functools.partialmethod(LazyStore._forward, name))
    LazyStore.deleteKey = LazyStore.delete_key  # likewise
    return LazyStore


def bind_for(endpoint: Endpoint, addresses: Sequence[Address]) -> socket.socket:
    """Return a socket that listens on the endpoint's port. If `endpoint.is_loopback` is True, the socket listens only
    on loopback. Otherwise, it listens on all addresses, because a machine's own name often resolves to 127.0.1.1, which
    other machines cannot reach. Raises OSError, with errno EADDRINUSE if the port is in use."""
    from elastic_core.plugin import BACKLOG  # imported only where a store is hosted

    if endpoint.is_loopback:
        own = min(addresses, key=lambda address: address.family != socket.AF_INET)
        sock = bound_socket(own.family, own.sockaddr)
    else:
        sock = bound_everywhere(endpoint.port)
    try:
        # Accepted connections inherit these options. Without them, connections of vanished machines would stay open.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBES_AFTER)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBES_EVERY)
        sock.listen(BACKLOG)  # with SO_REUSEADDR, two sockets can bind a port, but only one can listen
    except OSError:
        sock.close()
        raise
    return sock


def start_server(sock: socket.socket) -> Store:
    """Start a TCPStore that owns this socket and serves on it until the store is garbage-collected. For errors, see
    `start_tcp_store`."""
    from elastic_core.plugin import start_tcp_store

    store: Store = start_tcp_store(sock, distributed())
    return store


def allow_connections(nodes: int) -> int:
    """Raise this process's limit on open files so that `nodes` nodes can connect. If the hard limit permits, also allow
    for other clients, which could otherwise use up the agent's files. The change is logged if the nodes need it.

    Returns the maximum number of connections, which is half of the limit, but at least the number that the nodes need.
    """
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
        log.warning("file limit raised", advice="still too low: raise the hard limit (ulimit -Hn) on the store's host")
    elif soft < needed:
        log.info("file limit raised")
    return max(of_nodes, allowed // 2)

"""Connections to torch stores, and the connectors that open them. One connector shares an existing store, and another
opens more connections to the server of an existing TCPStore. A connection is a store object and, if it can be found,
its socket.

In torch, only `wait` has a time limit, and a blocked operation cannot be interrupted. The socket provides both
features. A receive timeout ends an operation that a suspended store does not answer, and a shutdown ends all operations
immediately. The socket's descriptor is read from the store's `repr`. If a torch version omits the descriptor, each wait
is split into short ones instead.

A hung constructor (see `StoreDialer`) occupies a thread and a socket whose descriptor is unknown. If the
thread returns from C++ while the interpreter shuts down, the process aborts with SIGABRT. Shutting down the socket is
the only way to end the thread. `cut_unanswered` looks for sockets that are connected to the store's port, are not in
`_known`, and have received no data. The sockets of finished constructors have received data, so they are left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from elastic_c10d.torch_store import distributed, innermost
from elastic_core.plugin import (
    BackgroundCall,
    Backoff,
    RendezvousConnectionError,
    StoreConnection,
    is_wait_timeout,
    joined_host_port,
    unreachable_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.plugin import Duration, Store, StoreConnector

READ_TIMEOUT: Duration = 60.0
CONNECT_TIMEOUT: Duration = 10.0
_PATIENT_TIMEOUT: Duration = 1.5  # torch retries a refused connection for this long, even after `close`
_DESCRIPTOR = re.compile(r"SocketImpl\(fd=(\d+)")
_ASKING = Backoff(first=0.005, longest=0.1, factor=1.5)  # pauses between polls, for stores whose `wait` must not block
_ACK_AGE, _RECEIVED, _INFO = 56, 128, 136  # in Linux's tcp_info: offsets of two fields, and the size
_SILENCE = 5.0  # seconds without an answer after which reconnecting is faster than waiting for a retransmission
_FRESH = 3000  # milliseconds since the last packet from the peer; keepalive probes are sent every second
_known: WeakValueDictionary[int, socket.socket] = WeakValueDictionary()


class TorchConnection(StoreConnection):
    """A connection to a torch store. The module's docstring explains the role of the socket.

    Args:
        pushes: whether the store's `wait` may block. If False, keys are polled.
        handle: a duplicate of the store's socket, if it was found.
    """

    def __init__(self, store: Store, pushes: bool, where: str, handle: socket.socket | None = None) -> None:
        super().__init__(store, where)
        self.pushes = pushes
        self.socket = handle
        self._patience: Duration | None = None  # the store's timeout, if it was set

    def fetch(self, key: str, timeout: Duration, closed: threading.Event) -> bytes | None:
        """Wait for a key and return its value, or None after `timeout` seconds. Uses torch's blocking `get` only if the
        socket can interrupt it."""
        if not self.pushes:
            return self.asked_for(key, timeout, closed, _ASKING)
        if self.socket is None:
            return super().fetch(key, timeout, closed)
        try:
            self.store.set_timeout(timedelta(seconds=max(timeout, 0.001)))
            return bytes(self.store.get(key))
        except RuntimeError as error:
            if is_wait_timeout(error):
                return None
            raise
        finally:
            if self._patience is not None:
                self.shorten_timeout(self._patience)

    def shorten_timeout(self, seconds: Duration) -> None:
        if self.socket is not None:
            self._patience = seconds
            self.store.set_timeout(timedelta(seconds=seconds))

    def bound(self, seconds: Duration, watched: bool = True) -> None:
        """Limit each operation except `wait` to this many seconds. After a timeout, the connection is out of sync and
        must be closed. The kernel also closes the connection if the peer's machine does not answer for a few seconds.
        If `watched` is True, the kernel sends keepalive probes every second."""
        if self.socket is not None:
            limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            interval = 1 if watched else max(1, int(seconds / 4))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
            silence = int(min(seconds, _SILENCE) * 1000)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence)

    def machine_answers(self) -> bool:
        """Return whether the peer's machine has answered within the last few seconds. If it has, the store rather than
        the network is the cause of an outage. Thread-safe."""
        try:
            return self.socket is not None and _number(self.socket, "=I", _ACK_AGE) < _FRESH
        except OSError:
            return False

    def abort(self) -> None:
        if self.socket is not None:
            with contextlib.suppress(OSError):  # already closed
                self.socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close our duplicate of the socket. The store object closes its own."""
        if self.socket is not None:
            self.socket.close()


def socket_of(store: Store, port: int) -> socket.socket | None:
    """Return a duplicate of a new TCPStore's socket, or None if the socket cannot be found."""
    found = _DESCRIPTOR.search(repr(innermost(store)))
    if found is None:
        return None
    try:
        handle = socket.socket(fileno=os.dup(int(found.group(1))))
    except OSError:
        return None
    if _leads_to(handle, port):
        _known[os.fstat(handle.fileno()).st_ino] = handle
        return handle
    handle.close()
    return None


def cut_unanswered(port: int) -> None:
    """Shut down each socket that is connected to `port` on any host, is not in `_known`, and has received no data."""
    for handle in _open_sockets():
        with contextlib.suppress(OSError):  # not connected, or closed in the meantime
            known = os.fstat(handle.fileno()).st_ino in _known
            if not known and _leads_to(handle, port) and not _number(handle, "=Q", _RECEIVED):
                handle.shutdown(socket.SHUT_RDWR)


def accepted(port: int) -> list[tuple[str, int]]:
    """Return the `host:port` of each peer that is connected to the local `port` of a server in this process, and the
    number of bytes received from the peer, with the largest number first."""
    found: list[tuple[str, int]] = []
    for handle in _open_sockets():
        with contextlib.suppress(OSError):  # not connected
            if handle.family in (socket.AF_INET, socket.AF_INET6) and handle.getsockname()[1] == port:
                host, its_port = handle.getpeername()[:2]
                peer = joined_host_port(host.removeprefix("::ffff:"), its_port)
                found.append((peer, _number(handle, "=Q", _RECEIVED)))
    return sorted(found, key=lambda peer: -peer[1])


def _leads_to(handle: socket.socket, port: int) -> bool:
    try:
        peer = handle.getpeername()
    except OSError:
        return False
    return isinstance(peer, tuple) and len(peer) > 1 and peer[1] == port


def _number(handle: socket.socket, form: str, place: int) -> int:
    """Read a field of Linux's tcp_info. Raises OSError if the socket is not TCP or the kernel lacks the field."""
    info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
    if len(info) < place + struct.calcsize(form):
        raise OSError("not supported by this kernel")
    return int(struct.unpack_from(form, info, place)[0])


def _open_sockets() -> Iterator[socket.socket]:
    """Yield duplicates of all sockets of this process. Each duplicate is closed when the next one is requested."""
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd") if name.isdigit()]
    except OSError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed in the meantime
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as handle:
                    yield handle


class SharedConnector:
    """Returns the same store to all callers. The store must be thread-safe, as FileStore and HashStore are."""

    grace: Duration = 0.0
    hosts = False

    def __init__(self, store: Store, where: str = "") -> None:
        self.where = where or type(store).__name__
        self._connection = TorchConnection(store, pushes=False, where=self.where)

    def connect(self, aside: bool = False) -> TorchConnection:
        return self._connection

    def close(self) -> None:
        """Do nothing, because the caller owns the store."""


class BorrowedTcpConnector:
    """Opens separate connections to the server of an existing TCPStore. The store object itself is not used, because
    its timeout belongs to its owner and is usually long. With that timeout, one read of a key that has just been
    deleted would block the node for minutes."""

    grace: Duration = 0.0
    hosts = False

    def __init__(self, store: Any, base: Any) -> None:
        self._store, self._base = store, base
        self._dialer = StoreDialer()
        self.where = f"{base.host}:{base.port}"

    def connect(self, aside: bool = False) -> TorchConnection:
        if self._store is self._base:
            return self._dialer.dial(self._base.host, self._base.port, self.where, CONNECT_TIMEOUT, patiently=aside)
        return self._dialer.run(self._store.clone, self._base.port, self.where, CONNECT_TIMEOUT)

    def close(self) -> None:
        self._dialer.close()


class StoreDialer:
    """Creates TCPStore clients within a time limit. torch's constructor waits forever for a listener that does not
    answer. Each constructor therefore runs in a separate thread, unless the caller may wait indefinitely. If a
    constructor is stuck, the next call for the same address waits for it instead of starting another one.

    Args:
        read_timeout: seconds after which an unanswered operation fails.
        load: imports `torch.distributed` and returns it.
    """

    def __init__(self, read_timeout: Duration = READ_TIMEOUT, load: Callable[[], Any] = distributed) -> None:
        self.stop = threading.Event()
        self._load = load
        self._read_timeout = read_timeout
        self._stuck: dict[tuple[str, int], BackgroundCall[Store]] = {}  # constructors by location and port
        self._called: list[int] = []
        self._imported = False
        self._waiting: set[BackgroundCall[Any]] = set()

    def dial(self, host: str, port: int, where: str, timeout: Duration, patiently: bool = False) -> TorchConnection:
        """Connect to the TCPStore at `host`, which should already be listening. If `patiently` is True, the wait
        for the listener's answer has no limit, but `close` can end it. Use this if the address has just answered.
        `timeout` does not include the import of torch, which can take longer than that on a busy machine. The import
        runs in a thread, so that `close` can end the wait.

        Raises:
            RendezvousConnectionError: `host` did not answer as a TCPStore in time, or `close` was called.
        """

        def make() -> Store:
            limit = timedelta(seconds=_PATIENT_TIMEOUT if patiently else timeout)
            store: Store = self._load().TCPStore(host, port, None, False, limit, wait_for_workers=False)
            return store

        if patiently:
            return self._call(make, port, where)
        if not self._imported:
            imported = BackgroundCall(self._load, "rendezvous-import")
            if not self._over(imported, threading.TIMEOUT_MAX):
                raise RendezvousConnectionError(self._silence(where, timeout))
            imported.result()
            self._imported = True
        return self.run(make, port, where, timeout)

    def _call(self, make: Callable[[], Store], port: int, where: str) -> TorchConnection:
        self._called.append(port)
        try:
            if self.stop.is_set():
                raise RendezvousConnectionError(self._silence(where, 0.0))
            return self._finished(make(), port, where, watched=False)
        except RuntimeError as error:
            raise unreachable_error("connecting", where, error) from error
        finally:
            self._called.remove(port)

    def run(self, make: Callable[[], Store], port: int, where: str, timeout: Duration) -> TorchConnection:
        """Connect like `dial`, but create the store with `make`."""
        if self.stop.is_set():
            raise RendezvousConnectionError(self._silence(where, timeout))
        attempt = self._stuck.pop((where, port), None) or BackgroundCall(make, "rendezvous-connect")
        if not self._over(attempt, timeout):
            self._stuck[where, port] = attempt
            if self.stop.is_set():
                self.close()
            raise RendezvousConnectionError(self._silence(where, timeout))
        try:
            store = attempt.result()
        except RuntimeError as error:
            raise unreachable_error("connecting", where, error) from error
        return self._finished(store, port, where, watched=True)

    def _over(self, call: BackgroundCall[Any], timeout: Duration) -> bool:
        """Return whether the call ends within `timeout` seconds. The wait also ends when `close` is called."""
        self._waiting.add(call)
        try:
            return not self.stop.is_set() and call.wait(timeout)
        finally:
            self._waiting.discard(call)

    def close(self) -> None:
        """Make current and future calls fail, and end stuck constructors."""
        self.stop.set()
        for attempt in tuple(self._waiting):
            attempt.interrupt()
        with contextlib.suppress(KeyError):  # empty; a caller may remove its own entry at the same time
            while True:
                (_, stuck_port), _ = self._stuck.popitem()
                cut_unanswered(stuck_port)
        for port in tuple(self._called):
            cut_unanswered(port)

    def _finished(self, store: Any, port: int, where: str, watched: bool) -> TorchConnection:
        connection = TorchConnection(store, True, where, socket_of(store, port))
        store.set_timeout(timedelta(seconds=self._read_timeout))
        connection.bound(self._read_timeout, watched)
        return connection

    def _silence(self, where: str, timeout: Duration) -> str:
        if self.stop.is_set():
            return f"connecting to {where} was aborted, because this side was closed"
        return (
            f"a program listens at {where}, but does not answer as a TCPStore (waited {timeout:g} s); the port may be "
            "wrong, the program another kind of store (--rdzv-backend), or the store suspended"
        )


def as_connector(store: Store | StoreConnector) -> StoreConnector:
    """Return a connector for the store. If the argument is already a connector, return it unchanged."""
    if hasattr(store, "connect"):
        return cast("StoreConnector", store)
    base = innermost(store)
    if isinstance(base, distributed().TCPStore) and (store is base or hasattr(store, "clone")):
        return BorrowedTcpConnector(store, base)
    return SharedConnector(store)

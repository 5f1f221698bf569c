"""One connection to a torch store: the store object, and the socket beneath it where it has one that we made.

torch bounds neither how long an operation other than `wait` takes, nor can a blocked one be interrupted. Both are
properties of the socket: a receive timeout ends an operation that a paused store does not answer, and a shutdown ends
all of them at once. torch names the descriptor of its socket in the store's `repr`. Where it does not (another version
of torch), the socket cannot be found, and waits are cut into short pieces instead.

A constructor that hangs (see `connector.Dialler`) holds a socket without a known descriptor, a thread, and the end of
the process: a thread that comes back from C++ while the interpreter shuts down brings it down with SIGABRT. Its socket
is the one to that port which is none of those we know and has not received a single byte: every finished one has.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from elastic_c10d.torch_store import innermost
from elastic_core.plugin import Backoff, StoreConnection, is_wait_timeout

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from elastic_c10d.torch_store import Store
    from elastic_core.plugin import Duration

_DESCRIPTOR = re.compile(r"SocketImpl\(fd=(\d+)")
_ASKING = Backoff(first=0.005, longest=0.1, factor=1.5)  # between questions, where nothing is pushed
_ACK_AGE, _RECEIVED, _INFO = 56, 128, 136  # where tcpi_last_ack_recv and tcpi_bytes_received are in tcp_info; its size
_SILENCE = 5.0  # of a machine, after which a new connection is sooner than the next packet of the old one
_FRESH = 3000  # milliseconds since the last sign of life; the kernel asks for one in every second
_known: WeakValueDictionary[int, socket.socket] = WeakValueDictionary()


class TorchConnection(StoreConnection):
    """See above.

    Args:
        pushes: whether the store's `wait` may block; else it has to be imitated by asking now and then.
        socket: a second handle on its socket, if there is one.
    """

    def __init__(self, store: Store, pushes: bool, where: str, handle: socket.socket | None = None) -> None:
        super().__init__(store, where)
        self.pushes = pushes
        self.socket = handle
        self._patience: Duration | None = None  # of the store, where it was told

    def fetch(self, key: str, timeout: Duration, closed: threading.Event) -> bytes | None:
        """torch's `get` waits for the key as `wait` does. Without a socket to cut it could not be ended in time."""
        if not self.pushes:
            return self.asked_for(key, timeout, closed, _ASKING)
        if self.socket is None or not hasattr(self.store, "set_timeout"):
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
                self.hasten(self._patience)

    def hasten(self, seconds: Duration) -> None:
        if self.socket is not None and hasattr(self.store, "set_timeout"):
            self._patience = seconds
            self.store.set_timeout(timedelta(seconds=seconds))

    def bound(self, seconds: Duration, watched: bool = True) -> None:
        """No operation takes longer than this, time spent in `wait` aside. After one that did, the connection is out
        of step and must be dropped. And the kernel ends the connection when the peer's machine has been silent for some
        seconds: it would send again with ever longer pauses. Where the connection is `watched`, the kernel asks for a
        sign of that machine once in a second."""
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
        """Whether the machine at the other end has given a sign of life within the last seconds: if it has, the store
        does not answer, and not the network. Any thread."""
        try:
            return self.socket is not None and _number(self.socket, "=I", _ACK_AGE) < _FRESH
        except OSError:
            return False

    def abort(self) -> None:
        if self.socket is not None:
            try:
                self.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was gone already

    def release(self) -> None:
        """Let go of our hold on the socket; the store object closes its own."""
        if self.socket is not None:
            self.socket.close()


def socket_of(store: Store, port: int) -> socket.socket | None:
    """A second handle on the socket of a TCPStore that was just made and has had no fault; None if it is not found."""
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
    """Shut down the sockets to `port` on any host that are not known and have never received anything."""
    for handle in _open_sockets():
        with contextlib.suppress(OSError):  # not connected, or closed in the meantime
            known = os.fstat(handle.fileno()).st_ino in _known
            if not known and _leads_to(handle, port) and not _number(handle, "=Q", _RECEIVED):
                handle.shutdown(socket.SHUT_RDWR)


class Accepted(NamedTuple):
    """A connection that a server in this process has accepted at `port`: from where, and how many bytes it has sent."""

    host: str
    its_port: int
    port: int
    received: int


def accepted() -> list[Accepted]:
    """All of this process, those that have sent most first."""
    ports: set[int] = set()
    found: list[Accepted] = []
    for handle in _open_sockets():
        if handle.family not in (socket.AF_INET, socket.AF_INET6):
            continue
        with contextlib.suppress(OSError):  # not connected
            port = handle.getsockname()[1]
            if handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(port)
            else:
                host, its_port = handle.getpeername()[:2]
                taken = _number(handle, "=Q", _RECEIVED)
                found.append(Accepted(host.removeprefix("::ffff:"), its_port, port, taken))
    return sorted((peer for peer in found if peer.port in ports), key=lambda peer: -peer.received)


def _leads_to(handle: socket.socket, port: int) -> bool:
    try:
        peer = handle.getpeername()
    except OSError:
        return False
    return isinstance(peer, tuple) and len(peer) > 1 and peer[1] == port


def _number(handle: socket.socket, form: str, place: int) -> int:
    """A field of Linux's tcp_info. Raises OSError for what is not TCP, or where the kernel does not tell."""
    info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
    if len(info) < place + struct.calcsize(form):
        raise OSError("this kernel does not tell")
    return int(struct.unpack_from(form, info, place)[0])


def _open_sockets() -> Iterator[socket.socket]:
    """A second handle on each socket of this process, for one turn."""
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd") if name.isdigit()]
    except OSError:
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed in the meantime
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as handle:
                    yield handle

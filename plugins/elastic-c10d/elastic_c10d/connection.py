"""One connection to a store: the store object, and the socket beneath it where it has one that we made.

torch bounds neither how long an operation other than `wait` takes, nor can a blocked one be interrupted. Both are
properties of the socket: a receive timeout ends an operation that a paused store does not answer, and a shutdown ends
all of them at once. torch names the descriptor of its socket in the store's `repr`. Where it does not (another version
of torch), `socket` is None, and waits are cut into short pieces instead.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_c10d.sockets import remember
from elastic_c10d.torch_store import innermost

if TYPE_CHECKING:
    from elastic_c10d.torch_store import Store
    from elastic_core.clock import Duration

_DESCRIPTOR = re.compile(r"SocketImpl\(fd=(\d+)")


@dataclass(frozen=True)
class Connection:
    """A store, and whether its `wait` may block (`pushes`) or has to be imitated by asking now and then."""

    store: Store
    pushes: bool
    where: str
    socket: socket.socket | None = None

    def bound(self, seconds: Duration) -> None:
        """No operation takes longer than this, time spent in `wait` aside. After one that did, the connection is out
        of step and must be dropped."""
        if self.socket is not None:
            limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def watch(self, seconds: Duration) -> None:
        """Let the kernel end the connection when the peer's machine has been silent for about this long."""
        if self.socket is not None:
            interval = max(1, int(seconds / 4))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def abort(self) -> None:
        """Let every operation on it fail now, blocked ones included. Any thread. Idempotent."""
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
    if _peer_port(handle) == port:
        remember(handle)
        return handle
    handle.close()
    return None


def _peer_port(handle: socket.socket) -> int | None:
    try:
        peer = handle.getpeername()
    except OSError:
        return None
    return int(peer[1]) if isinstance(peer, tuple) else None

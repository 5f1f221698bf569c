"""Sockets of this process as the kernel knows them: which of them belong to a TCPStore that torch has not finished.

A constructor that hangs (see `connector.Dialler`) holds a socket which nobody can name, a thread, and the end of the
process: a thread that comes back from C++ while the interpreter shuts down brings it down with SIGABRT. Its socket is
the one to that port which was not there before and is none of those we know.
"""

from __future__ import annotations

import os
import socket
import stat
from weakref import WeakValueDictionary

_known: WeakValueDictionary[int, socket.socket] = WeakValueDictionary()


def remember(handle: socket.socket) -> None:
    """Note a second handle on a finished TCPStore's socket, for as long as the handle lives."""
    _known[os.fstat(handle.fileno()).st_ino] = handle


def sockets_to(port: int) -> frozenset[int]:
    """The sockets, by inode, that are connected to the port on whatever host."""
    return frozenset(_descriptors(port))


def cut(port: int, before: frozenset[int]) -> None:
    """Shut down the sockets to `port` that are neither in `before` nor known."""
    for inode, descriptor in _descriptors(port).items():
        if inode not in before and inode not in _known:
            with _handle(descriptor) as handle:
                try:
                    handle.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has ended by itself


def _descriptors(port: int) -> dict[int, int]:
    found = {}
    for descriptor in _open_files():
        try:
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and _peer_port(descriptor) == port:
                found[status.st_ino] = descriptor
        except OSError:
            continue  # not connected, or closed in the meantime
    return found


def _peer_port(descriptor: int) -> int | None:
    with _handle(descriptor) as handle:
        peer = handle.getpeername()
        return peer[1] if isinstance(peer, tuple) and len(peer) > 1 else None


def _handle(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd") if name.isdigit()]
    except OSError:
        return []

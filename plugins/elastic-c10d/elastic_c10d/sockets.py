"""Sockets of this process as the kernel knows them: which of them belong to a TCPStore that torch has not finished.

A constructor that hangs (see `connector.Dialler`) holds a socket which nobody can name, a thread, and the end of the
process: a thread that comes back from C++ while the interpreter shuts down brings it down with SIGABRT. Its socket is
the one to that port which is none of those we know and has not received a single byte: every finished one has.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from weakref import WeakValueDictionary

_RECEIVED = 128  # where the field is in the kernel's struct tcp_info
_known: WeakValueDictionary[int, socket.socket] = WeakValueDictionary()


def remember(handle: socket.socket) -> None:
    """Note a second handle on a finished TCPStore's socket, for as long as the handle lives."""
    _known[os.fstat(handle.fileno()).st_ino] = handle


def cut_unanswered(port: int) -> None:
    """Shut down the sockets to `port` on whatever host that are not known and were never sent anything."""
    for descriptor in _open_files():
        try:
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in _known:
                with socket.socket(fileno=os.dup(descriptor)) as handle:
                    if _leads_to(handle, port) and not _received(handle):
                        handle.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # not connected, or closed in the meantime


def _leads_to(handle: socket.socket, port: int) -> bool:
    peer = handle.getpeername()
    return isinstance(peer, tuple) and len(peer) > 1 and peer[1] == port


def _received(handle: socket.socket) -> int:
    """How many bytes came in; `tcpi_bytes_received` of Linux. Raises OSError for what is not TCP."""
    info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED + 8)
    if len(info) < _RECEIVED + 8:
        raise OSError("this kernel does not tell")
    return int(struct.unpack_from("@Q", info, _RECEIVED)[0])


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd") if name.isdigit()]
    except OSError:
        return []

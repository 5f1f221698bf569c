"""What the kernel has counted on the TCP sockets of this process."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Offsets in `struct tcp_info` of <linux/tcp.h>, which only ever grows at its end.
_BYTES_ACKED, _BYTES_RECEIVED, _DATA_SEGMENTS_OUT = 120, 128, 156
_SIZE = 256


@dataclass(frozen=True)
class Counted:
    """One connection since it was opened. Bytes are payload, without the headers of TCP and IP.

    `requests` are segments with payload that this side sent. A client of TCPStore writes each request at once and waits
    for its answer before the next, so they are the requests, for all but one: `set` has no answer, and several in a row
    may share a segment. `get` and `multi_get` are two requests each: wait until the key is there, then read it.
    """

    peer_port: int
    sent: int
    received: int
    requests: int


def connections() -> dict[str, Counted]:
    """All established TCP connections of this process, by the inode of the socket, which no other one has meanwhile."""
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if target.startswith("socket:") and (counted := _look(int(descriptor))) is not None:
                found[target] = counted
    return found


def _look(descriptor: int) -> Counted | None:
    with socket.socket(fileno=os.dup(descriptor)) as handle:
        if handle.family not in (socket.AF_INET, socket.AF_INET6) or handle.type != socket.SOCK_STREAM:
            return None
        port = handle.getpeername()[1]  # OSError for one that listens
        info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    acked, received = struct.unpack_from("=QQ", info, _BYTES_ACKED)
    (requests,) = struct.unpack_from("=I", info, _DATA_SEGMENTS_OUT)
    return Counted(port, acked, received, requests)

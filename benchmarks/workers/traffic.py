"""The kernel's counters of this process's TCP sockets."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Offsets in `struct tcp_info` of <linux/tcp.h>, which only ever grows at its end.
_RETRANSMITTED, _BYTES_ACKED, _BYTES_RECEIVED, _DATA_SEGMENTS_OUT = 100, 120, 128, 156
_SIZE = 256


@dataclass(frozen=True)
class Counted:
    """Counters of one connection since it was opened. Bytes are payload, without the headers of TCP and IP.

    `requests` are segments with payload that this side sent, without those that the kernel repeated. A TCPStore client
    writes each request in one piece and waits for its reply, so segments equal requests. Only `set` has no reply, so
    several `set` in a row may share a segment. `get` and `multi_get` are two requests each: wait for the key, then read
    it.
    """

    peer_port: int
    sent: int
    received: int
    requests: int


def connections() -> dict[str, Counted]:
    """All established TCP connections of this process by their sockets' inodes, which are unique while they exist."""
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
        port = handle.getpeername()[1]  # OSError for a listening socket
        info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    acked, received = struct.unpack_from("=QQ", info, _BYTES_ACKED)
    (segments,) = struct.unpack_from("=I", info, _DATA_SEGMENTS_OUT)
    (repeated,) = struct.unpack_from("=I", info, _RETRANSMITTED)
    return Counted(port, acked, received, segments - repeated)

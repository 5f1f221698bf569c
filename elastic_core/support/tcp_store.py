"""The program that hosts the workers' stores for an agent that does not need torch itself: `workers_store` starts it.

Arguments: a descriptor of the socket from which it takes listening sockets, and the entries of `sys.path`. For each
message with a listening socket it serves a new TCPStore there, in place of the previous one. It ends with its standard
input.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
from datetime import timedelta
from typing import Any

_TIMEOUT = timedelta(seconds=300)


def start_server(sock: socket.socket, distributed: Any) -> Any:
    """A TCPStore that serves on this listening socket until it is garbage; it owns the socket. `distributed` is the
    module `torch.distributed`."""
    host, port = sock.getsockname()[:2]
    own = {"::": "::1", "0.0.0.0": "127.0.0.1"}.get(host, host)
    if sock.family == socket.AF_INET6 and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        own = "127.0.0.1" if host == "::" else own
    return distributed.TCPStore(own, port, None, True, _TIMEOUT, wait_for_workers=False, master_listen_fd=sock.detach())


def main() -> None:
    sys.path[:] = sys.argv[2:]
    import torch.distributed

    store: Any = None
    with selectors.DefaultSelector() as selector, socket.socket(fileno=int(sys.argv[1])) as control:
        for descriptor in (0, control.fileno()):
            selector.register(descriptor, selectors.EVENT_READ)
        while not any(key.fd == 0 for key, _ in selector.select()):
            message, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            store = None  # before the next one: a port may be used again
            with contextlib.suppress(RuntimeError):  # the agent has given the socket up already
                store = start_server(socket.socket(fileno=descriptors[0]), torch.distributed)
    del store
    os._exit(0)


if __name__ == "__main__":
    main()

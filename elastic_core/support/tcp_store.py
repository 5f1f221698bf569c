"""A program that hosts the workers' stores for an agent that has not imported torch. `workers_store` starts it.

The arguments are the descriptor of a socket from which the program reads orders, and the entries of `sys.path`. An
order that contains a listening socket starts a TCPStore on that socket. An order without a socket ends the store. The
program answers each order, and exits when its standard input closes."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import threading
from datetime import timedelta
from typing import Any

_TIMEOUT = timedelta(seconds=300)
FILES = 12  # torch 2.13 opens 10 for a server and the server's own client


def start_tcp_store(sock: socket.socket, distributed: Any) -> Any:
    """Return a TCPStore that serves on this listening socket until the store is garbage-collected. The socket is also
    closed if the store cannot be started. `distributed` is the module `torch.distributed`.

    Raises:
        OSError: this process cannot open `FILES` more files. Torch would then fail, abort the process, or try for
            minutes to reach its own server.
        RuntimeError: torch cannot start the store.
    """
    host, port = sock.getsockname()[:2]
    own = "127.0.0.1" if host in ("::", "0.0.0.0") else host  # a socket at `::` also accepts IPv4, see `bound_socket`
    with sock:
        with contextlib.ExitStack() as files:
            for _ in range(FILES):
                files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        listens = sock.detach()
    inode = os.fstat(listens).st_ino
    try:
        return distributed.TCPStore(own, port, None, True, _TIMEOUT, wait_for_workers=False, master_listen_fd=listens)
    except Exception:
        with contextlib.suppress(OSError):  # torch has closed the descriptor
            if os.fstat(listens).st_ino == inode:
                os.close(listens)
        raise


def main() -> None:
    import site

    threading.Thread(target=_leave_with_the_agent, daemon=True).start()  # the imports below may take many seconds
    site.main()  # .pth files may install import hooks
    sys.path[:] = sys.argv[2:]
    distributed = importlib.import_module("torch.distributed")
    stores: list[Any] = []
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            message, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            stores.clear()
            if descriptors:
                stores.append(start_tcp_store(socket.socket(fileno=descriptors[0]), distributed))
            control.send(message)
        os._exit(0)


def _leave_with_the_agent() -> None:
    """Exit when standard input closes."""
    try:
        os.read(0, 1)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()

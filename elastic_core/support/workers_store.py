"""The workers' store: a server of torch's TCPStore on rank 0's node, a new one for every round.

It belongs to the agent, so it outlives rank 0's worker, and ranks that are still busy can use it. From `serve` on the
kernel accepts connections, so no worker comes too early. An agent that has not imported torch does not import it for
this, because an import can hold up all threads of Python for seconds: a separate process hosts the stores. It is
started when a process of this machine loads torch, or a client connects, so jobs without torch seldom pay for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import select
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import get_logger
from elastic_core.support import tcp_store
from elastic_core.support.forks import drop_in_forks
from elastic_core.support.helper import HelperProcess
from elastic_core.support.sockets import PortReservation
from elastic_core.text import truth

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elastic_core.clock import Duration

BACKLOG = 65535  # the kernel caps it at net.core.somaxconn, as it does torch's own
_NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_FILES = 12  # torch 2.13 opens 10 for a server and its own client
_ENDING: Duration = 5.0  # seconds for a killed process to be gone
_IN_OPEN = 0x20


class WorkersStore:
    """One node's place for the workers' store: a reserved port, and from `serve` on the server there. One thread.

    Args:
        environ: with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as without torch, rank 0's worker hosts the store and this
            only reserves the port. None: this process's environment.
        everywhere: listen on all addresses, because nodes reach this one at different ones; otherwise at the address
            that is advertised, if that is one of this machine's.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, everywhere: bool = False) -> None:
        self._environ = os.environ if environ is None else environ
        self._everywhere = everywhere
        self._reservation: PortReservation | None = None
        self._store: Any = None
        self._host: _Host | None = None

    @functools.cached_property
    def hosted_by_agent(self) -> bool:
        """Whether the agent hosts the store; otherwise rank 0's worker does."""
        return not truth(self._environ.get(_NOT_SHARED, "0")) and find_spec("torch") is not None

    def reserve(self, address: str, port: int = 0) -> int:
        """Reserve a port in place of the previous one, whose server ends.

        Args:
            address: that this node advertises.
            port: 0 for any free port, which differs from the previous one.

        Raises:
            ConfigurationError: the port is in use or not allowed.
        """
        if port:
            self._end()
        # A worker's server listens on all addresses; torch cannot be told otherwise.
        fresh = PortReservation(port, address if self.hosted_by_agent and not self._everywhere else "")
        self._end()
        self._reservation = fresh
        return fresh.port

    def serve(self) -> None:
        """This node has rank 0. Raises ConfigurationError if this process cannot open the files, or another program
        listens at the port."""
        if self._reservation is None or not self.hosted_by_agent:
            return
        _need_files()
        sock = self._reservation.listen(BACKLOG)
        self._reservation = None
        if "torch" in sys.modules:
            self._store = tcp_store.start_server(sock, importlib.import_module("torch.distributed"))
        else:
            self._host = self._host or _Host()
            self._host.serve(sock)

    def release(self) -> None:
        """Release the port, and end the server and its process. Idempotent."""
        self._end()
        if self._host is not None:
            self._host.close()
            self._host = None

    def _end(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        self._store = None
        if self._host is not None:
            self._host.stop()


class _Host:
    """The process that hosts the stores of all rounds, and the thread that starts and watches it."""

    def __init__(self) -> None:
        self._serving: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._process: HelperProcess | None = None
        self._control: socket.socket | None = None
        drop_in_forks(self)

    def serve(self, sock: socket.socket) -> None:
        """Serve on this listening socket, once a store is needed."""
        self._serving = sock
        self._thread = threading.Thread(target=self._run, args=(sock,), name="workers-store", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No longer listen. The process keeps the store until it gets the next socket, or ends."""
        sock, self._serving = self._serving, None
        if sock is not None and self._thread is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # for the process, too; and it wakes the thread
            self._thread.join()
            sock.close()

    def close(self) -> None:
        self.stop()
        self._end_process()

    def drop(self) -> None:
        """In a forked child, which must not hold what the process listens to."""
        if self._control is not None:
            self._control.close()

    def _run(self, sock: socket.socket) -> None:
        try:
            if self._process is None:
                self._wait_for_need(sock)
                if self._serving is sock:
                    self._begin()
            if self._process is not None and self._control is not None:
                socket.send_fds(self._control, [b"+"], [sock.fileno()])
                self._watch(sock, self._process)
        except OSError as error:
            self._lost(sock, error.strerror or str(error))

    def _wait_for_need(self, sock: socket.socket) -> None:
        with _loading_torch() as loading:
            poll = select.poll()
            for descriptor in (sock.fileno(), *loading):
                poll.register(descriptor, select.POLLIN)
            poll.poll()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [str(theirs.fileno()), *filter(None, sys.path)]
            environment = {"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ}
            keeps = [theirs.fileno()]
            self._process = HelperProcess(tcp_store.__file__, arguments, environment, keeps=keeps)

    def _watch(self, sock: socket.socket, process: HelperProcess) -> None:
        """Until the socket is shut down, or the process ends."""
        poll = select.poll()
        for descriptor in (sock.fileno(), process.sentinel):
            if descriptor is not None:
                poll.register(descriptor, 0)  # which tells of the end only
        poll.poll()
        if self._serving is sock:
            self._lost(sock, f"the process {process.pid} that hosts it has ended")

    def _lost(self, sock: socket.socket, reason: str) -> None:
        """Workers that wait for it fail at once, and the next round has another process."""
        get_logger(reason=reason).error("workers' store lost")
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        self.drop()
        if process is not None:
            process.kill()
            process.close(_ENDING)


@contextlib.contextmanager
def _loading_torch() -> Iterator[tuple[int, ...]]:
    """A descriptor that is readable once a process of this machine opens one of torch's libraries. None, if the system
    has no inotify: then the first connection tells."""
    import ctypes

    found, libc = find_spec("torch"), ctypes.CDLL(None)
    folder = Path(found.origin if found is not None and found.origin else "").parent / "lib"
    descriptor = libc.inotify_init1(os.O_CLOEXEC) if hasattr(libc, "inotify_init1") else -1
    if descriptor < 0:
        yield ()
        return
    try:
        libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_OPEN)
        yield (descriptor,)
    finally:
        os.close(descriptor)


def _need_files() -> None:
    """Without them torch would abort this process, or try for minutes to reach its own server. Raises
    ConfigurationError."""
    with contextlib.ExitStack() as files:
        try:
            for _ in range(_FILES):
                files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            expected = f"expected to open {_FILES} files for the workers' store, found: {error.strerror}"
            raise ConfigurationError(Problem("ulimit -n", f"{expected}; raise it where the agent starts")) from error

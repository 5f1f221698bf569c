"""The workers' store: a torch TCPStore server on rank 0's node, new for every round.

The agent owns the server, so the server outlives rank 0's worker and stays available to ranks that are still busy. The
kernel accepts connections as soon as `serve` is called, so workers cannot connect too early.

If the agent has not imported torch, a separate process hosts the stores, because the import can block all Python
threads for seconds. The agent starts that process only when a process on this machine loads torch or a client connects.
The process is therefore rarely started for jobs that do not use torch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import select
import socket
import sys
import threading
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import get_logger
from elastic_core.support.processes import HelperProcess, drop_in_forks, no_forks
from elastic_core.support.sockets import PortReservation
from elastic_core.text import truth

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from elastic_core.clock import Duration

BACKLOG = 65535  # the kernel lowers this to net.core.somaxconn, as it does with torch's value
_NOT_SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_ANSWER: Duration = 1.0  # seconds for the process to end a server
_ENDING: Duration = 5.0  # seconds for a killed process to exit
_IN_OPEN = 0x20
_RECENT = 64  # ports that are not used again
_MOST_TRIES = 16


class WorkersStore:
    """The port that one node reserves for the workers' store and, after `serve`, the server on that port, unless rank
    0's worker hosts the store (with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 or without torch). Not thread-safe.

    Args:
        everywhere: whether to listen on all addresses, for nodes that reach the store at different addresses. If false,
            the server listens only on the advertised address, provided that the address belongs to this machine.
    """

    def __init__(self, everywhere: bool = False) -> None:
        self._everywhere = everywhere
        self._reservation: PortReservation | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._store: Any = None
        self._host: _Host | None = None

    @functools.cached_property
    def hosted_by_agent(self) -> bool:
        """Whether the agent hosts the store, as opposed to rank 0's worker."""
        return not truth(os.environ.get(_NOT_SHARED, "0")) and _torch() is not None

    def reserve(self, address: str, port: int = 0) -> int:
        """Reserve a new port, release the previous port, and stop the server on the previous port.

        Args:
            address: the address that this node advertises.
            port: 0 for any free port other than the previous ones, which workers of an earlier round may still use.

        Raises:
            ConfigurationError: the port is in use or not allowed.
        """
        if port:
            self._end()
        # If a worker hosts the store, it listens on all addresses, because torch has no option for that.
        where = address if self.hosted_by_agent and not self._everywhere else ""
        held = [PortReservation(port, where)]
        with contextlib.suppress(ConfigurationError):  # no other port is free
            while not port and held[-1].port in self._recent and len(held) < _MOST_TRIES:
                held.append(PortReservation(0, where))
        self._end()
        *others, self._reservation = held
        for other in others:
            other.release()
        self._recent.append(self._reservation.port)
        return self._reservation.port

    def serve(self) -> None:
        """Serve the store on rank 0's node. Does nothing if a worker hosts the store.

        Raises:
            ConfigurationError: this process cannot open enough files, or another program is listening on the port.
        """
        if self._reservation is None or not self.hosted_by_agent:
            return
        sock = self._reservation.listen(BACKLOG)
        self._reservation = None
        if "torch" not in sys.modules:
            self._host = self._host or _Host()
            self._host.serve(sock)
            return
        from elastic_core.support.tcp_store import FILES, start_tcp_store

        distributed = importlib.import_module("torch.distributed")
        try:
            self._store = start_tcp_store(sock, distributed)
        except OSError as error:
            expected = f"this process cannot open {FILES} files for the workers' store: {error.strerror}"
            raise ConfigurationError(
                Problem("ulimit -n", f"{expected}; raise the limit in the shell or service that starts the agent")
            ) from error

    def release(self) -> None:
        """Release the port, stop the server, and end the process that hosts the server, if there is one. Idempotent."""
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
    """The process that hosts the stores of all rounds, and the thread that starts and watches the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serving: socket.socket | None = None
        self._is_handed_over = self._is_served = False
        self._thread: threading.Thread | None = None
        self._process: HelperProcess | None = None
        self._control: socket.socket | None = None
        drop_in_forks(self)

    def serve(self, sock: socket.socket) -> None:
        """Serve on this listening socket, starting the process when a store is needed."""
        thread = threading.Thread(target=self._run, args=(sock,), name="workers-store", daemon=True)
        self._serving, self._is_handed_over, self._is_served = sock, False, False
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Stop serving. Kill the process if it is still importing torch or does not answer."""
        with self._lock:
            sock, self._serving = self._serving, None
            with contextlib.suppress(OSError):
                if sock is not None and not self._is_handed_over:
                    sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
                elif sock is not None and self._is_served and self._control is not None:
                    self._control.send(b"-")  # a shutdown would keep the process's server busy
        if self._thread is not None:
            if self._is_served or not self._is_handed_over:
                self._thread.join(_ANSWER)
            if self._thread.is_alive():
                self._end_process()
                self._thread.join()
            self._thread = None
        if sock is not None:
            sock.close()

    def close(self) -> None:
        self.stop()
        self._end_process()

    def drop(self) -> None:
        """Close the sockets in a forked child, because the process and its clients wait for the last copy to close."""
        for sock in (self._control, self._serving):
            if sock is not None:
                sock.close()

    def _run(self, sock: socket.socket) -> None:
        if self._process is None:
            _wait_for_need(sock)
        reason = "its process has ended"
        try:
            with self._lock:
                if self._serving is not sock:
                    return
                control = self._hand_over(sock)
                self._is_handed_over = True
            while answer := control.recv(1):
                if answer == b"-":
                    return
                self._is_served = True
        except OSError as error:
            reason = error.strerror or str(error)
        if self._serving is sock:  # workers that are waiting for the store fail, and the next round gets a new process
            get_logger(reason=reason).error("workers' store lost")
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _hand_over(self, sock: socket.socket) -> socket.socket:
        if self._process is not None and self._control is not None:
            with contextlib.suppress(OSError):  # the process has ended since the last round
                socket.send_fds(self._control, [b"+"], [sock.fileno()])
                return self._control
            self._end_process()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, no_forks:
            arguments = [str(theirs.fileno()), *filter(None, sys.path)]
            environment = {"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ}
            keeps = [theirs.fileno()]
            self._process = HelperProcess(Path(__file__).with_name("tcp_store.py"), arguments, environment, keeps=keeps)
        socket.send_fds(self._control, [b"+"], [sock.fileno()])
        return self._control

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.close(_ENDING)
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # wakes the thread, even if the process cannot be killed
            self._control.close()
            self._control = None


@functools.cache
def _torch() -> ModuleSpec | None:
    """Find the installed torch. The result is cached, because each search reads every folder on the path."""
    return find_spec("torch")


def _wait_for_need(sock: socket.socket) -> None:
    """Wait until a client connects or, if inotify is available, a process on this machine opens one of torch's
    libraries."""
    import ctypes

    found, libc = _torch(), ctypes.CDLL(None)
    folder = Path(found.origin if found is not None and found.origin else "").parent / "lib"
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    loading = libc.inotify_init1(os.O_CLOEXEC)
    if loading >= 0:
        libc.inotify_add_watch(loading, os.fsencode(folder), _IN_OPEN)
        poll.register(loading, select.POLLIN)
    poll.poll()
    if loading >= 0:
        os.close(loading)

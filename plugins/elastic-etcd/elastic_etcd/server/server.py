"""An etcd server that a program starts and stops.

Its data lives only as long as the server and its machine. A job that must survive the loss of a machine needs a
separate cluster of at least three members.

A bound socket that never listens reserves the port. The kernel therefore does not give the port to a process that asks
for any free port. etcd (3.4 to 3.6) cannot take over a listening socket, so a process that asks for this specific port
may bind it before etcd does. In that case, etcd exits immediately, and another port is tried. To make sure that the
server that answers is this one, it is asked for its unique name.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.plugin import (
    ConfigurationError,
    PortReservation,
    Problem,
    RendezvousConnectionError,
    SystemClock,
    get_logger,
    joined_host_port,
    later,
)
from elastic_etcd.server.gateway import UNUSABLE, ask, is_healthy
from elastic_etcd.server.process import ServerProcess, find_binary

if TYPE_CHECKING:
    import os

    from elastic_core.plugin import Clock, Duration, Instant
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.server.process import Binary, Output

_PROBE_EVERY = 0.05  # seconds between probes while the server starts
_HOST = "127.0.0.1"
_PEER = "unix://peer:0"  # a socket file in the server's folder, because a cluster of one needs no port for peers
_TAKEN = "address already in use"


class EtcdServerError(RendezvousConnectionError):
    """The etcd server could not be started."""


class EtcdServer:
    """A context manager that starts and stops an etcd server, which forms a cluster of one member and listens on
    loopback only. The server ends with this process, no matter how the process ends.

    Args:
        data_dir: folder for the server's data and log, which is created if it does not exist and is kept for later
            servers (default: a private folder, which `stop` removes).
    """

    def __init__(self, data_dir: str | os.PathLike[str] | None = None, clock: Clock | None = None) -> None:
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._clock = clock or SystemClock()
        self._undo = contextlib.ExitStack()
        self._reservation: PortReservation | None = None
        self._process: ServerProcess | None = None

    def start(self, timeout: Duration = 60, num_retries: int = 3, stderr: Output = None) -> None:
        """Start the server, and return when it serves. Raises ConfigurationError if there is no binary or the data
        cannot be stored. Raises EtcdServerError, with the end of the log, if the server exits or does not serve in
        time.

        Args:
            timeout: seconds for all attempts together.
            num_retries: how many other ports to try if another process takes the port first.
            stderr: receives the output in addition to the log in the server's folder (default: only the log does).
        """
        if self._process is not None:
            raise RuntimeError("the server is already running; stop it first")
        if stderr in (subprocess.PIPE, subprocess.STDOUT):
            raise ValueError("stderr must be a file or DEVNULL, because nothing would read the output from a pipe")
        binary = find_binary()
        deadline = later(self._clock.now(), timeout)
        try:
            while not self._serves(binary, stderr, deadline):
                if num_retries <= 0:
                    raise EtcdServerError(
                        "several ports in a row were already in use (ss -ltnp shows by which process)"
                    )
                num_retries -= 1
                self.stop()
            endpoint, version = self.get_endpoint(), binary.version
            get_logger().info("etcd server started", endpoint=endpoint, path=binary.path, version=version)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server, and remove its folder if the folder is a private one. Idempotent."""
        self._process = self._reservation = None
        self._undo.close()

    def get_host(self) -> str:
        """Return the host to which clients connect."""
        return _HOST

    def get_port(self) -> int:
        """Return the port. Raises RuntimeError if the server is not running."""
        if self._reservation is None:
            raise RuntimeError("the server is not running; call start()")
        return self._reservation.port

    def get_endpoint(self) -> str:
        """Return `host:port`. Raises RuntimeError if the server is not running."""
        return joined_host_port(self.get_host(), self.get_port())

    def get_client(self) -> EtcdClient:
        """Return a new client, which the caller closes. Raises RuntimeError if the server is not running."""
        from elastic_etcd.client.client import EtcdClient

        return EtcdClient([self.get_endpoint()])

    @property
    def pid(self) -> int:
        """The server's process id, or 0 if it is not running."""
        return self._process.pid if self._process is not None and not self._process.end else 0

    def __enter__(self) -> EtcdServer:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serves(self, binary: Binary, stderr: Output, deadline: Instant) -> bool:
        """Start the server at a reserved port, and wait until it serves. Returns False if the port was taken. Raises
        EtcdServerError."""
        self._reservation = PortReservation()
        self._undo.callback(self._reservation.release)
        folder = self._prepare_folder()
        name = f"elastic-{secrets.token_hex(8)}"  # unique, to recognize this server by
        url = f"http://{self.get_endpoint()}"
        cluster, temporary = f"{name}={_PEER}", self._data_dir is None
        process = ServerProcess(binary, name, folder, (url, url), (_PEER, _PEER), cluster, (), temporary, stderr)
        self._process = process
        self._undo.callback(process.close)
        while not (answers_as(name, url) and process.known(_PROBE_EVERY)):
            if process.ended(_PROBE_EVERY):
                if _TAKEN in process.log.text():
                    return False
                raise EtcdServerError(
                    f"the etcd server at {url} exited immediately: {process.end}; check that the binary is "
                    f"etcd, and look for the reason in its log{process.log.shown()}"
                )
            if self._clock.now() >= deadline:
                raise EtcdServerError(
                    f"the etcd server at {url} did not answer in time; increase `timeout`, or find out why it "
                    f"hangs{process.log.shown()}"
                )
        process.reports_loss = True
        return True

    def _prepare_folder(self) -> Path:
        if self._data_dir is None:
            folder = tempfile.mkdtemp(prefix="elastic-etcd-")
            self._undo.callback(shutil.rmtree, folder, ignore_errors=True)
            return Path(folder)
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            problem = f"etcd's data cannot be stored in {self._data_dir}: {error.strerror}; choose another folder"
            raise ConfigurationError(Problem("data_dir", problem)) from error
        return self._data_dir


def answers_as(name: str, url: str, timeout: float = 1.0) -> bool:
    """Return whether a healthy etcd server whose only member has this name answers at `url`."""
    try:
        members = ask(f"{url}/v3/cluster/member/list", {}, timeout)["members"]
        return [member.get("name") for member in members] == [name] and is_healthy(url, timeout)
    except UNUSABLE:
        return False

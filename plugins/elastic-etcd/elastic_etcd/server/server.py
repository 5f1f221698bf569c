"""An etcd that a program starts and ends.

What is not promised: its data lives as long as it does, and as long as this machine. A job that must outlive a machine
needs a cluster of three members or more, which somebody else runs.

It gets a port that is held for it: a socket that is bound and never listens keeps everybody else away who asks for any
port. etcd (3.4 to 3.6) takes no socket that listens already, so one who asks for this very port can still be quicker;
then etcd ends at once, and another port is tried. Who answers in the end is asked for its name, which is unique.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from elastic_core.plugin import (
    ConfigurationError,
    PortReservation,
    Problem,
    RendezvousConnectionError,
    SystemClock,
    get_logger,
    ip_address,
    joined_host_port,
    later,
    resolve_host,
)
from elastic_etcd.server.gateway import UNUSABLE, ask, is_healthy
from elastic_etcd.server.process import ServerProcess, Urls, find_binary

if TYPE_CHECKING:
    import os

    from elastic_core.plugin import Clock, Duration, Instant
    from elastic_etcd.client.client import EtcdClient
    from elastic_etcd.server.process import Binary

_PROBE_EVERY = 0.05  # seconds, while it starts
_PEER = "unix://peer:0"  # a socket file in its folder: a cluster of one needs no port for peers
_TAKEN = "address already in use"


class EtcdServerError(RendezvousConnectionError):
    """An etcd that was to be started has not come up."""


class EtcdServer:
    """Starts and stops an etcd, a cluster of one. It ends with this process, however that ends. A context manager.

    Args:
        data_dir: where to keep its data and its log; made if it is missing, and left there at the end, so that the data
            is found again by the next one. None: a private folder, which is removed at the end.
        host: the address of this machine to listen at; the loopback address unless others are to reach it.
        port: to listen at; 0 for any free one.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._host = host
        self._wanted = port
        self._clock = clock or SystemClock()
        self._undo = contextlib.ExitStack()
        self._reservation: PortReservation | None = None
        self._process: ServerProcess | None = None
        self._serving = False

    def start(
        self, timeout: Duration = 60, num_retries: int = 3, stderr: int | IO[bytes] | IO[str] | None = None
    ) -> None:
        """Start it, and come back when it serves.

        Args:
            timeout: for all attempts together, in seconds.
            num_retries: how often another port is tried when somebody was quicker at one.
            stderr: where its output is to go besides the log in its folder; None: nowhere.

        Raises:
            ConfigurationError: there is no binary, or the port or address cannot be had.
            EtcdServerError: it ends, or does not serve in time; with the end of its log.
        """
        if self._process is not None:
            raise RuntimeError("expected a server that was not started, found one that runs already; stop it first")
        if stderr in (subprocess.PIPE, subprocess.STDOUT):
            raise ValueError(
                "expected a file or DEVNULL for stderr, found a pipe, which nobody would read; give a file"
            )
        binary, address = find_binary(), self._address()
        deadline = later(self._clock.now(), timeout)
        try:
            while not self._serves(binary, address, stderr, deadline, timeout):
                if num_retries <= 0 or self._wanted:
                    raise self._port_taken()
                num_retries -= 1
                self.stop()
            self._serving = True
            where = {"endpoint": self.get_endpoint(), "path": binary.path, "version": binary.version}
            get_logger().info("etcd server started", **where)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it, and remove its folder if that is a private one. Idempotent."""
        self._serving = False
        self._process = self._reservation = None
        self._undo.close()

    def get_host(self) -> str:
        """The host that clients find it at. A server that listens on all addresses is told by this machine's name."""
        address = ip_address(self._host)
        return socket.gethostname() if address is not None and address.is_unspecified else self._host

    def get_port(self) -> int:
        """The port. Raises RuntimeError when it does not run."""
        if self._reservation is None:
            raise RuntimeError("expected a server that runs, found one that was not started; call start")
        return self._reservation.port

    def get_endpoint(self) -> str:
        """`host:port`. Raises RuntimeError when it does not run."""
        return joined_host_port(self.get_host(), self.get_port())

    def get_client(self) -> EtcdClient:
        """A new client of it; the caller closes it. Raises RuntimeError when it does not run."""
        from elastic_etcd.client.client import EtcdClient

        return EtcdClient([self.get_endpoint()])

    @property
    def pid(self) -> int:
        """Its process id; 0 when it does not run."""
        return self._process.pid if self._process is not None and not self._process.end else 0

    def failure(self) -> str | None:
        """How it ended by itself, with the end of its log; None while it runs, or when it was not started."""
        if self._process is None or not self._process.end:
            return None
        return f"etcd has ended: {self._process.end}{self._process.log.shown()}"

    def __enter__(self) -> EtcdServer:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serves(
        self,
        binary: Binary,
        address: str,
        stderr: int | IO[bytes] | IO[str] | None,
        deadline: Instant,
        timeout: Duration,
    ) -> bool:
        """Start it at a port that is held for it, and wait until it serves. False when it could not have the port.
        Raises EtcdServerError."""
        try:
            self._reservation = PortReservation(self._wanted)
        except ConfigurationError:
            raise self._port_taken() from None
        self._undo.callback(self._reservation.release)
        folder = self._prepare_folder()
        name = f"elastic-{secrets.token_hex(8)}"  # unique, to recognize this server by
        url = f"http://{address}:{self._reservation.port}"
        probed_at = url.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
        process = self._process = ServerProcess(
            binary,
            name,
            folder,
            Urls(url, url, _PEER, _PEER),
            f"{name}={_PEER}",
            temporary=self._data_dir is None,
            stderr=stderr,
            on_exit=self._lost,
        )
        self._undo.callback(process.close)
        while not (answers_as(name, probed_at) and process.known(_PROBE_EVERY)):
            if process.ended(_PROBE_EVERY):
                if _TAKEN in process.log.text():
                    return False
                raise EtcdServerError(
                    f"expected to start an etcd at {url}, found that it exited immediately: {process.end}; the binary "
                    f"may not be an etcd, or its log has the reason{process.log.shown()}"
                )
            if self._clock.now() >= deadline:
                raise EtcdServerError(
                    f"expected an etcd to serve at {url} within {timeout:g} s, found one that does not answer, or is "
                    f"not known to run; give it more time (timeout), or see why it hangs{process.log.shown()}"
                )
        return True

    def _lost(self, end: str) -> None:
        """It has ended by itself. While it starts, whoever waits for it tells."""
        if self._serving and (process := self._process) is not None:
            get_logger().error("etcd server lost", how=end, log=process.log.tail())

    def _port_taken(self) -> ConfigurationError:
        port = self._wanted or "any of several ports"
        told = f"expected a free port for etcd, found {port} taken; ss -ltnp shows by whom; choose another"
        return ConfigurationError(Problem("port", told))

    def _prepare_folder(self) -> Path:
        if self._data_dir is None:
            folder = tempfile.mkdtemp(prefix="elastic-etcd-")
            self._undo.callback(shutil.rmtree, folder, ignore_errors=True)
            return Path(folder)
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            problem = f"expected a folder for etcd's data, found that {self._data_dir} cannot be one: {error.strerror}"
            raise ConfigurationError(Problem("data_dir", f"{problem}; choose another")) from error
        return self._data_dir

    def _address(self) -> str:
        """The host as a number, as etcd wants it; in brackets if it is IPv6."""
        try:
            number = resolve_host(self._host, 0)[0].host
        except OSError as error:
            problem = f"expected an address or name of this machine, found {self._host!r}: {error.strerror}; correct it"
            raise ConfigurationError(Problem("host", problem)) from error
        return f"[{number}]" if ":" in number else number


def answers_as(name: str, url: str, timeout: float = 1.0) -> bool:
    """Whether a healthy etcd, whose only member has this name, answers at `url`. False when anything is otherwise. It
    is asked over HTTP, so that no gRPC is needed."""
    try:
        members = ask(f"{url}/v3/cluster/member/list", {}, timeout)["members"]
        return [member.get("name") for member in members] == [name] and is_healthy(url, timeout)
    except UNUSABLE:
        return False

"""Real stores, in this process and in others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from elastic_c10d import C10dRendezvousBackend, StoreServer
from elastic_c10d.create import create_parts
from elastic_c10d.endpoint import Endpoint
from elastic_c10d.tcp_connector import TcpConnector
from elastic_c10d.torch_store import distributed
from elastic_testing import eventually

from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.backend import EntryDroppedError
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.support.sockets import PortReservation

HERE = Path(__file__).parent
LONG = 60.0

SERVER = """
import sys, threading
from elastic_c10d import StoreServer
from elastic_c10d.endpoint import Endpoint
server = StoreServer(Endpoint("127.0.0.1", int(sys.argv[1])))
print(server.start(), flush=True)
threading.Event().wait(100)
"""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.torch)


class ServerProcess:
    """A TCPStore server in a separate process, on a port that it keeps over restarts."""

    def __init__(self, port, warm):
        self.port = port
        self._warm = warm
        self.start()

    def start(self):
        self._process = self._warm.start(("-c", SERVER, str(self.port)), stdout=subprocess.PIPE)
        assert self._process.stdout.readline() == f"{self.port}\n"

    def kill(self):
        self._process.kill()
        self._process.wait(LONG)
        self._process.stdout.close()

    def pause(self):
        os.kill(self._process.pid, signal.SIGSTOP)
        eventually(lambda: psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)

    def resume(self):
        os.kill(self._process.pid, signal.SIGCONT)


@pytest.fixture
def fails():
    """`fails(call)`: whether a call raises RendezvousConnectionError."""

    def raised(function):
        try:
            function()
        except RendezvousConnectionError:
            return True
        return False

    return raised


@pytest.fixture
def free_port():
    """Reserves ports until the end of the test, for servers that set SO_REUSEADDR as torch's do."""
    held = []

    def find():
        held.append(PortReservation())
        return held[-1].port

    yield find
    for port in held:
        port.release()


@pytest.fixture
def server_process(free_port, warm):
    made = []

    def make(port=None):
        made.append(ServerProcess(port or free_port(), warm))
        return made[-1]

    yield make
    for server in made:
        with contextlib.suppress(OSError, ValueError):
            server.kill()


@pytest.fixture
def port():
    """The port of a TCPStore server in this process."""
    server = StoreServer(Endpoint("127.0.0.1", 0))
    yield server.start()
    server.stop()


@pytest.fixture
def client(port):
    """Makes plain TCPStore clients."""

    def make():
        return distributed().TCPStore("127.0.0.1", port, None, False, timedelta(seconds=LONG), wait_for_workers=False)

    return make


@pytest.fixture
def over():
    """Makes backends over a TCPStore at a port, closed at the end."""
    made = []

    def make(port, run_id="job", read_timeout=2 * LONG, connect_timeout=2 * LONG, **options):
        # Long enough for a machine on which torch's reverse lookups time out.
        connector = TcpConnector(
            Endpoint("127.0.0.1", port), read_timeout=read_timeout, connect_timeout=connect_timeout
        )
        made.append(C10dRendezvousBackend(connector, run_id, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def node():
    """Makes the backends of a job's nodes, closed at the end."""
    made = []

    def make(endpoint, seal=None, **config):
        params = RendezvousParameters("c10d", endpoint, "job", 1, 4, "127.0.0.1", connect_timeout=20.0, **config)
        made.append(create_parts(params)[0])
        if seal is not None:
            made[-1].sign_with(seal)
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture(params=["tcp", "file", "hash", "prefixed tcp", "prefixed file"])
def backends(request, tmp_path):
    """Makes backends over one store of each kind, each with its own connection if the kind has connections."""
    kind = request.param
    made = []
    if kind.endswith("tcp"):
        port = request.getfixturevalue("port")
    hashed = distributed().HashStore()

    def store():
        if kind.endswith("tcp"):
            return distributed().TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
        return hashed if kind == "hash" else distributed().FileStore(str(tmp_path / "store"), -1)

    def make(run_id="job", **options):
        own = distributed().PrefixStore("outer", store()) if kind.startswith("prefixed") else store()
        made.append(C10dRendezvousBackend(own, run_id, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def beats():
    """Sends a node's heartbeat, and announces the node again if the store has lost its entry."""

    def beat(backend, key, entry):
        try:
            backend.beat(key, leading=False, look=False)
        except EntryDroppedError:
            backend.announce(key, entry)

    return beat

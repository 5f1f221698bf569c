"""Real etcd servers, ended with the test that asked for them; the shared one at the end."""

import itertools
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cluster as servers_module

LONG = 20.0
_numbers = itertools.count(1)


class Background:
    """A call in a thread of its own."""

    def __init__(self, function):
        self._function = function
        self.value = None
        self.error = None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        begun = time.monotonic()
        try:
            self.value = self._function()
        except Exception as error:
            self.error = error
        self.seconds = time.monotonic() - begun

    def result(self, timeout=LONG):
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still running after {timeout} s"
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def running(self):
        return self._thread.is_alive()


@pytest.fixture
def background():
    return Background


@pytest.fixture
def eventually():
    def wait(condition, timeout=LONG):
        return servers_module.eventually(condition, timeout)

    return wait


@pytest.fixture
def listener():
    """Something that listens and never answers; its port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


@pytest.fixture(scope="session")
def shared_servers():
    made = servers_module.Servers()
    yield made
    made.close()


@pytest.fixture(scope="session")
def etcd(shared_servers):
    """One server for all tests (`cluster.Member`: endpoint, port, url); each uses a `prefix` of its own, and leaves the
    server running and without authentication."""
    return shared_servers.single()


@pytest.fixture
def prefix():
    """That no other test uses, as bytes that end with a slash."""
    return f"/test-{next(_numbers)}-{time.time_ns()}/".encode()


@pytest.fixture
def servers():
    """Makes servers for this test alone: `servers.single(quota=..., users=...)`, `servers.cluster(3)`; the options are
    those of `cluster.Options`."""
    made = servers_module.Servers()
    yield made
    made.close()


@pytest.fixture
def cluster(servers):
    """Three members of this test's own."""
    return servers.cluster(3)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """For servers at 127.0.0.1, and for a client."""
    return servers_module.make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def strange_certificates(tmp_path_factory):
    """The same of an authority that nobody else trusts."""
    return servers_module.make_certificates(tmp_path_factory.mktemp("strange"))


@pytest.fixture(scope="session")
def etcd_version():
    """Of the etcd under test, as (3, 5)."""
    return servers_module.version()


@pytest.fixture
def connect():
    """Makes clients, closed at the end: `connect("host:port,host:port", timeout=...)`."""
    from elastic_etcd.client.client import EtcdClient

    made = []

    def make(endpoints, **options):
        made.append(EtcdClient(endpoints.split(","), **options))
        return made[-1]

    yield make
    for client in made:
        client.close()

"""Real etcd servers, stopped after the test that requested them; the shared one after all tests."""

import itertools
import socket
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "tests" / "docs"))  # `blocks`
sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`, `job_of_nodes`

import cluster as servers_module
import elastic_testing
from elastic_testing import Background
from running import elastic, etcd_endpoint, job

__all__ = ["elastic", "etcd_endpoint", "job"]

_numbers = itertools.count(1)


@pytest.fixture
def background():
    return Background


@pytest.fixture
def eventually():
    return elastic_testing.eventually


@pytest.fixture
def listener():
    """The port of a socket that listens and never answers."""
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
    """One server for all tests (`cluster.Member`: endpoint, port, url). Each test uses its own `prefix`, and leaves the
    server running and without authentication."""
    return shared_servers.single()


@pytest.fixture
def prefix():
    """A key prefix that no other test uses, as bytes that end with a slash."""
    return f"/test-{next(_numbers)}-{time.time_ns()}/".encode()


@pytest.fixture
def servers():
    """Makes servers for this test alone: `servers.single(quota=..., users=...)`, `servers.cluster(3)`. The options are
    the fields of `cluster.Options`."""
    made = servers_module.Servers()
    yield made
    made.close()


@pytest.fixture
def cluster(servers):
    """A three-member cluster for this test alone."""
    return servers.cluster(3)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Certificates for servers at 127.0.0.1, and for a client."""
    return servers_module.make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def untrusted_certificates(tmp_path_factory):
    """Certificates from an authority that no other certificate file trusts."""
    return servers_module.make_certificates(tmp_path_factory.mktemp("strange"))


@pytest.fixture(scope="session")
def etcd_version():
    """The version of the etcd under test, for example (3, 5)."""
    return servers_module.version()


@pytest.fixture
def connect():
    """Makes clients, closed at the end: `connect("host:port,host:port", timeout=...)`. The default timeout tolerates a
    slow server."""
    from elastic_etcd.client.client import EtcdClient

    made = []

    def make(endpoints, **options):
        made.append(EtcdClient(endpoints.split(","), **{"timeout": servers_module.LONG, **options}))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(etcd, connect):
    """A client of the shared server."""
    return connect(etcd.endpoint)

"""Real etcd servers, ended with the test that asked for them; the shared one at the end."""

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
    """Makes clients, closed at the end: `connect("host:port,host:port", timeout=...)`. Patient ones: a server that is
    slow is not what tests are about, unless they say so."""
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
    """One of the shared server."""
    return connect(etcd.endpoint)

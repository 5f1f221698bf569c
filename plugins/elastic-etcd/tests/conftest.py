"""Real etcd servers (see `cluster.py`), their certificates, and clients."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "tests" / "docs"))  # `blocks`
sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`, `job_of_nodes`

import cluster as servers_module
from cluster import etcd, prefix, servers, shared_servers
from running import elastic, etcd_endpoint, job, machines

__all__ = ["elastic", "etcd", "etcd_endpoint", "job", "machines", "prefix", "servers", "shared_servers"]


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
def dist():
    """torch.distributed. Once it is imported, round stores are torch stores."""
    import torch.distributed

    return torch.distributed


@pytest.fixture
def client(etcd, connect):
    """A client of the shared server."""
    return connect(etcd.endpoint)

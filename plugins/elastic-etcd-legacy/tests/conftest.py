"""Real etcd servers from the tests of elastic-etcd, and nodes as threads."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "elastic-etcd" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`, `job_of_nodes`

from cluster import etcd, prefix, servers, shared_servers
from running import elastic

__all__ = ["elastic", "etcd", "prefix", "servers", "shared_servers"]


@pytest.fixture
def run_id(prefix):
    """A run id that no other test uses."""
    return prefix.decode().strip("/")

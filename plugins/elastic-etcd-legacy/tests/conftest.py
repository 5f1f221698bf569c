"""Real etcd servers from the tests of elastic-etcd, and nodes as threads."""

import itertools
import socket
import sys
import time
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "elastic-etcd" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))  # `running`, `job_of_nodes`

import cluster as servers_module
import elastic_testing
from elastic_testing import Background
from running import elastic

__all__ = ["elastic"]

LONG = 60.0
_numbers = itertools.count(1)


@pytest.fixture
def background():
    return partial(Background, timeout=LONG)


@pytest.fixture
def eventually():
    return partial(elastic_testing.eventually, timeout=LONG)


@pytest.fixture
def servers():
    """Makes servers for this test alone."""
    made = servers_module.Servers()
    yield made
    made.close()


@pytest.fixture(scope="session")
def etcd():
    """One server for all tests; each uses its own run id."""
    made = servers_module.Servers()
    yield made.single()
    made.close()


@pytest.fixture
def run_id():
    """A run id that no other test uses."""
    return f"job-{next(_numbers)}-{time.time_ns()}"


@pytest.fixture
def listener():
    """The port of a socket that listens and never answers."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]

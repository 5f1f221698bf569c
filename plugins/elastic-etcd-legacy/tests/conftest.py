"""Real etcd servers, from the tests of elastic-etcd, and nodes that are threads."""

import itertools
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "elastic-etcd" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

import cluster as servers_module

LONG = 30.0
_numbers = itertools.count(1)


class Background:
    """A call in a thread of its own."""

    def __init__(self, function):
        self._function = function
        self.value = None
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.value = self._function()
        except Exception as error:
            self.error = error

    @property
    def running(self):
        return self._thread.is_alive()

    def result(self, timeout=LONG):
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still running after {timeout} s"
        if self.error is not None:
            raise self.error
        return self.value


@pytest.fixture
def background():
    return Background


@pytest.fixture
def eventually():
    def wait(condition, timeout=LONG):
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            assert time.monotonic() < deadline, f"expected within {timeout} s: {condition}"
            time.sleep(0.02)
        return value

    return wait


@pytest.fixture
def servers():
    """Makes servers for this test alone."""
    made = servers_module.Servers()
    yield made
    made.close()


@pytest.fixture(scope="session")
def etcd():
    """One server for all tests; each uses a run of its own."""
    made = servers_module.Servers()
    yield made.single()
    made.close()


@pytest.fixture
def run_id():
    """That no other test uses."""
    return f"job-{next(_numbers)}-{time.time_ns()}"


@pytest.fixture
def listener():
    """Something that listens and never answers; its port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]

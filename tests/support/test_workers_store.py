"""The port and server of the workers' store, before torch is loaded. See also tests/e2e/test_workers_store.py."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.support import tcp_store
from elastic_core.support.workers_store import WorkersStore

pytestmark = pytest.mark.torch
HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", raising=False)


@pytest.fixture
def place():
    made = WorkersStore()
    yield made
    made.release()


def is_open(port, host=HERE):
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


def test_store_listens_from_serve_until_release(place):
    port = place.reserve(HERE)
    assert place.hosted_by_agent
    assert not is_open(port)
    place.serve()
    assert is_open(port)
    assert not is_open(port, "127.0.0.2")
    place.release()
    place.release()
    assert not is_open(port)


def test_new_reservation_ends_previous_server(place):
    first = place.reserve(HERE)
    place.serve()
    assert place.reserve(HERE) != first
    assert not is_open(first)


def test_store_listens_on_every_address():
    place = WorkersStore(everywhere=True)
    port = place.reserve(HERE)
    place.serve()
    assert is_open(port, "127.0.0.2")
    place.release()


def test_port_in_use_is_a_configuration_error(place, quiet_port):
    place.reserve(HERE, quiet_port)
    other = WorkersStore()
    other.reserve(HERE, quiet_port)
    other.serve()
    with pytest.raises(ConfigurationError, match=f"cannot use port {quiet_port}"):
        place.serve()
    other.release()


def test_port_is_only_reserved_if_a_worker_hosts_the_store(place, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    port = place.reserve(HERE)
    place.serve()
    assert (place.hosted_by_agent, is_open(port)) == (False, False)
    place.release()


FEW_PORTS = """
from elastic_core.support.workers_store import WorkersStore
store = WorkersStore()
print(*(store.reserve("127.0.0.1") for _ in range(5)))
store.release()
"""


def test_port_of_an_earlier_round_is_avoided():
    """A worker of that round may still try to connect to it."""
    setup = "ip link set lo up && sysctl -qw net.ipv4.ip_local_port_range='40000 40003' || exit 77; exec \"$@\""
    command = ["unshare", "-n", "sh", "-c", setup, "sh", sys.executable, "-c", FEW_PORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("cannot create a network name space here")
    ports = done.stdout.split()
    assert (len(ports), len(set(ports[:4]))) == (5, 4), done.stderr


def test_process_that_imports_torch_ends_with_its_agent(tmp_path):
    slow = tmp_path / "torch"
    slow.mkdir()
    (slow / "__init__.py").write_text("import time; print('importing', flush=True); time.sleep(600)")
    with contextlib.ExitStack() as stack:
        _control, theirs = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        command = [sys.executable, "-I", "-S", tcp_store.__file__, str(theirs.fileno()), str(tmp_path), *sys.path]
        pipe, keeps = subprocess.PIPE, [theirs.fileno()]
        process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=keeps))
        stack.callback(process.kill)
        assert process.stdout.readline() == b"importing\n"
        process.stdin.close()
        assert process.wait(60) == 0

"""Which node hosts the store, and at which address; the parts of a handler."""

from __future__ import annotations

import socket
import subprocess
from types import SimpleNamespace

import pytest
from elastic_c10d import C10dRendezvousBackend, create_backend
from elastic_c10d.create import create_parts
from elastic_c10d.endpoint import parse_endpoint
from elastic_c10d.tcp_connector import HostElection
from elastic_c10d.torch_store import distributed

from elastic_core.errors import ConfigurationError, RendezvousConnectionError
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.support.sockets import Address, cannot_bind, reached_at


def own_name_is_known():
    try:
        return bool(socket.getaddrinfo(socket.gethostname(), 1))
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(bool(cannot_bind(socket.AF_INET6, ("::1", 0))), reason="no IPv6 here")
NAMES = [
    "127.0.0.1",
    "localhost",
    "127.0.1.1",  # what a machine's own name often resolves to
    pytest.param("[::ffff:127.0.0.1]", marks=needs_ipv6),
    pytest.param("[::1]", marks=needs_ipv6),
    pytest.param(socket.gethostname(), marks=pytest.mark.skipif(not own_name_is_known(), reason="no name here")),
]


@pytest.fixture
def parts():
    made = []

    def make(endpoint, nodes=2, local_addr=None, **config):
        params = RendezvousParameters("c10d", endpoint, "job", 1, nodes, local_addr, **config)
        backend, stores = create_parts(params)
        made.append(SimpleNamespace(backend=backend, stores=stores))
        return made[-1]

    yield make
    for part in made:
        part.stores.release()
        part.backend.close()


@pytest.mark.parametrize("name", NAMES)
def test_first_node_hosts_and_second_joins(parts, free_port, name):
    endpoint = f"{name}:{free_port()}"
    first, second = parts(endpoint), parts(endpoint)
    first.backend.connect()
    second.backend.connect()
    assert (first.backend.hosts_store, second.backend.hosts_store) == (True, False)
    first.backend.announce("a", b"1")
    assert [seen.key for seen in second.backend.roster()] == ["a"]


def listening(port):
    hosts = ["127.0.0.1", "127.0.0.2"]
    return [host for host in hosts if socket.socket().connect_ex((host, port)) == 0]


def test_loopback_address_listens_on_loopback_only(parts, free_port):
    port = free_port()
    parts(f"127.0.0.1:{port}").backend.connect()
    assert listening(port) == ["127.0.0.1"]
    if own_name_is_known():
        port = free_port()
        parts(f"{socket.gethostname()}:{port}").backend.connect()
        assert listening(port) == ["127.0.0.1", "127.0.0.2"]


@pytest.mark.parametrize("local_addr", ["127.0.0.1", "localhost", "198.51.100.1", socket.gethostname()])
def test_workers_store_listens_where_it_is_advertised(parts, free_port, local_addr):
    """A foreign address belongs to a gateway; a name may resolve to another address on other machines."""
    made = parts(f"localhost:{free_port()}", local_addr=local_addr)
    made.backend.connect()
    where = made.stores.reserve()
    made.stores.open("1-a", where, is_host=True)
    only = local_addr in ("127.0.0.1", "localhost")
    assert listening(where.master_port) == (["127.0.0.1"] if only else ["127.0.0.1", "127.0.0.2"])
    made.stores.release()
    assert listening(where.master_port) == []


@pytest.mark.parametrize(("name", "nodes"), [("127.0.0.1", 2), ("localhost", 1)])
def test_loopback_job_listens_on_loopback_only(parts, free_port, name, nodes):
    made = parts(f"{name}:{free_port()}", nodes)
    made.backend.connect()
    where = made.stores.reserve()
    made.stores.open("1-a", where, is_host=True)
    assert listening(where.master_port) == ["127.0.0.1"]


@pytest.mark.parametrize("name", ["localhost", "0.0.0.0"])
def test_localhost_store_is_reachable_from_other_machines(parts, free_port, name):
    port = free_port()
    made = parts(f"{name}:{port}")
    made.backend.connect()
    assert listening(port) == ["127.0.0.1", "127.0.0.2"]
    assert made.stores.reserve().master_addr == reached_at()


RACER = """
import sys
from elastic_c10d.create import create_backend
from elastic_c10d.torch_store import distributed
from elastic_core.interfaces.handler import RendezvousParameters
distributed()
print("ready", flush=True)
sys.stdin.readline()
backend, _ = create_backend(RendezvousParameters("c10d", sys.argv[1], "job", 1, 4, connect_timeout=20.0))
backend.announce(sys.argv[2], b"")
print(backend.hosts_store, flush=True)
sys.stdin.readline()
print(len(backend.roster()), flush=True)
sys.stdin.readline()
"""


def test_exactly_one_of_racing_processes_hosts(free_port, warm):
    endpoint = f"127.0.0.1:{free_port()}"
    racers = [
        warm.start(("-c", RACER, endpoint, str(number)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for number in range(3)
    ]
    try:
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 3
        for racer in racers:
            racer.stdin.write("go\n")
        assert sorted(racer.stdout.readline() for racer in racers) == ["False\n", "False\n", "True\n"]
        for racer in racers:
            racer.stdin.write("look\n")
        assert [racer.stdout.readline() for racer in racers] == ["3\n"] * 3
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


SHORT_OF_FILES = """
import os, resource, sys
from elastic_c10d import StoreServer, create_backend
from elastic_c10d.torch_store import distributed
from elastic_core.errors import ElasticError
from elastic_core.interfaces.handler import RendezvousParameters

def connect():
    return create_backend(RendezvousParameters("c10d", sys.argv[1], "job", 1, 2, connect_timeout=0.5))

distributed()
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
start = StoreServer(sys.argv[1]).start if sys.argv[2] == "serve" else connect
used = []
try:
    while True:
        used.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for _ in range(int(sys.argv[3])):
    os.close(used.pop())
try:
    start()
except ElasticError as error:
    print("short" if "too many open files" in str(error).lower() else error)
for descriptor in used:
    os.close(descriptor)
kept = start()
print("started")
"""


@pytest.mark.parametrize("left", [1, 2, 9])  # torch would fail, abort, or hang
@pytest.mark.parametrize("what", ["host", "serve"])
def test_store_starts_once_files_are_free_again(free_port, warm, what, left):
    words = ("-c", SHORT_OF_FILES, f"127.0.0.1:{free_port()}", what, str(left))
    process = warm.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.communicate(timeout=60.0)[0].splitlines() == ["short", "started"]


def test_node_with_is_host_true_reports_a_taken_port(parts, port):
    with pytest.raises(RendezvousConnectionError, match=r"is_host.*already in use"):
        parts(f"127.0.0.1:{port}", is_host=True).backend.connect()


def test_hosted_store_is_recognized_by_any_local_address(free_port):
    """Otherwise a node could redirect to itself."""
    hosting = HostElection(parse_endpoint(f"127.0.0.1:{free_port()}"), None, 4)
    taken = hosting.take_over("127.0.0.1")
    another = Address(socket.AF_INET, ("127.0.0.2", taken.port))
    assert hosting.serves_at(another)
    assert not hosting.serves_at(Address(socket.AF_INET, ("127.0.0.2", taken.port + 1)))
    hosting.stop()
    assert not hosting.serves_at(another)


def test_create_backend_returns_a_store_that_can_be_prefixed(free_port):
    backend, store = create_backend(RendezvousParameters("c10d", f"127.0.0.1:{free_port()}", "job", 1, 1))
    assert isinstance(backend, C10dRendezvousBackend)
    prefixed = distributed().PrefixStore("mine", store)
    prefixed.set("key", "value")
    assert prefixed.get("key") == b"value"
    backend.close()


def test_file_that_is_not_a_store_is_refused(parts, tmp_path):
    (tmp_path / "notes.txt").write_text("these are notes and no store\n")
    with pytest.raises(ConfigurationError, match=r"the file '.*notes.txt' is not a torch FileStore"):
        parts(str(tmp_path / "notes.txt"), store_type="file")


@pytest.mark.parametrize(
    ("endpoint", "config", "problem"),
    [
        ("/no/such/folder/file", {"store_type": "file"}, "the folder of '/no/such/folder/file' does not exist"),
        ("", {"store_type": "file"}, "requires the path of a file"),
        ("127.0.0.1", {"store_type": "carrier pigeon"}, "expected tcp or file"),
        ("127.0.0.1", {"is_host": "perhaps"}, "is_host: expected true or false"),
        ("127.0.0.1", {"read_timeout": "-1"}, "expected a number of seconds > 0"),
        ("a:b:c", {}, "expected one endpoint"),
    ],
)
def test_invalid_configuration_is_refused(parts, endpoint, config, problem):
    with pytest.raises(ConfigurationError, match=problem):
        parts(endpoint, **config)


def test_node_advertises_the_given_or_connected_address(parts, free_port):
    endpoint = f"127.0.0.1:{free_port()}"
    part = parts(endpoint, local_addr="as.given.example")
    assert part.stores.reserve().master_addr == "as.given.example"
    part = parts(endpoint)
    part.backend.connect()
    assert part.stores.reserve().master_addr == "127.0.0.1"


@pytest.mark.skipif(not own_name_is_known(), reason="no name here")
def test_host_does_not_advertise_loopback_for_its_own_name(parts, free_port):
    part = parts(f"{socket.gethostname()}:{free_port()}")
    part.backend.connect()
    assert not part.stores.reserve().master_addr.startswith("127.")


def test_each_round_has_its_own_server_on_the_reserved_port(parts, free_port):
    endpoint = f"127.0.0.1:{free_port()}"
    host, other = parts(endpoint), parts(endpoint)
    host.backend.connect()
    other.backend.connect()
    for number in (1, 2):
        where = host.stores.reserve()
        other.stores.reserve()
        assert not listening(where.master_port)
        mine, theirs = host.stores.open(f"{number}-a", where, True), other.stores.open(f"{number}-a", where, False)
        worker = distributed().TCPStore(where.master_addr, where.master_port, None, False, wait_for_workers=False)
        assert worker.add("keys of workers", 1) == 1
        assert mine.add("keys of members", 1) == 1
        assert theirs.add("keys of members", 1) == 2
        del worker
    host.stores.release()
    assert not listening(where.master_port)


def test_port_is_only_reserved_without_store_sharing(parts, free_port, monkeypatch):
    from elastic_c10d.connection import SharedConnector
    from elastic_c10d.create import round_stores

    shared = SharedConnector(distributed().HashStore())
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    stores = round_stores(shared, "job", lambda: "127.0.0.1")
    assert not stores.hosted_by_agent
    where = stores.reserve()
    stores.open("1-a", where, True)
    assert not listening(where.master_port)
    server = distributed().TCPStore("127.0.0.1", where.master_port, None, True, wait_for_workers=False)
    assert server.port == where.master_port
    stores.release()
    stores.release()

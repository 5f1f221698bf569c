from __future__ import annotations

import inspect
import socket
from importlib.util import find_spec

import pytest

from elastic_core import builtin
from elastic_core.builtin import MemoryStore
from elastic_core.errors import ConfigurationError, RendezvousClosedError
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context, RendezvousBackendRecord, StoreRecord
from elastic_core.interfaces.handler import RendezvousParameters

pytestmark = pytest.mark.integration


@pytest.fixture
def create():
    made = []

    def create(min_nodes=1, max_nodes=1, local_addr=None, endpoint="", **config):
        parameters = RendezvousParameters("local", endpoint, "job", min_nodes, max_nodes, local_addr, **config)
        made.append(builtin.create_handler(Context(), parameters))
        return made[-1]

    yield create
    for handler in made:
        handler.shutdown()


def is_held(port):
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def test_round_has_one_node(create):
    has_torch = find_spec("torch") is not None
    handler = create()
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert is_held(info.bootstrap_store_info.master_port)
    assert (handler.get_backend(), handler.get_run_id()) == ("local", "job")
    assert (handler.num_nodes_waiting(), handler.use_agent_store, handler.is_closed()) == (0, has_torch, False)
    assert not handler.polled  # no other node can join


def test_every_round_has_its_own_store_and_port(create):
    handler = create()
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    assert first.store is not second.store
    assert is_held(second.bootstrap_store_info.master_port)
    ports = {handler.next_rendezvous().bootstrap_store_info.master_port for _ in range(20)}
    assert len(ports) > 1


def test_fixed_port_is_kept(create, quiet_port):
    handler = create(master_port=quiet_port)
    assert [handler.next_rendezvous().bootstrap_store_info.master_port for _ in range(3)] == [quiet_port] * 3


def test_busy_port_is_a_configuration_error(create):
    with socket.create_server(("127.0.0.1", 0)) as server:
        handler = create(master_port=server.getsockname()[1])
        with pytest.raises(ConfigurationError, match="cannot use port"):
            handler.next_rendezvous()


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "127.0.0.1"),
        ({"master_addr": "10.0.0.1"}, "10.0.0.1"),
        ({"master_addr": "[::1]"}, "::1"),
        ({"local_addr": "10.0.0.2"}, "10.0.0.2"),
        ({"master_addr": None, "local_addr": "10.0.0.2"}, "10.0.0.2"),
        ({"master_addr": "10.0.0.1", "local_addr": "10.0.0.2"}, "10.0.0.1"),
    ],
)
def test_workers_get_the_address(create, given, address):
    assert create(**given).next_rendezvous().bootstrap_store_info.master_addr == address


def test_no_round_forms_after_closing(create):
    handler = create()
    handler.set_closed()
    assert handler.is_closed()
    with pytest.raises(RendezvousClosedError, match="the job 'job' is closed"):
        handler.next_rendezvous()


def test_shutdown_releases_the_port(create, quiet_port):
    """Uses a port that the kernel does not assign. Otherwise another process could get it immediately."""
    handler = create(master_port=quiet_port)
    assert handler.next_rendezvous().bootstrap_store_info.master_port == quiet_port
    assert is_held(quiet_port)
    assert (handler.shutdown(), handler.shutdown()) == (True, True)
    assert not handler.is_closed()
    assert not is_held(quiet_port)


def test_several_nodes_are_rejected(create):
    with pytest.raises(ConfigurationError, match="'local' runs single-node jobs only, and --nnodes allows up to 4"):
        create(1, 4)


def test_endpoint_is_rejected(create):
    with pytest.raises(ConfigurationError) as refused:
        create(1, 2, endpoint="host:29400")
    assert [problem.origin for problem in refused.value.problems] == ["--rdzv-backend", "--rdzv-endpoint"]
    assert "remove 'host:29400'" in refused.value.problems[1].message


def test_backend_is_registered_by_a_plugin():
    manager = PluginManager.load({})
    record = manager.provided(RendezvousBackendRecord, "local").record
    assert inspect.unwrap(record.factory) is builtin.create_handler
    assert [option.name for option in record.options] == ["master_addr", "master_port"]
    assert isinstance(manager.select(StoreRecord, "memory").factory(Context()), MemoryStore)

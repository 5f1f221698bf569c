"""Backends that observe a job without joining it, and a store served on its own."""

from __future__ import annotations

import socket

import pytest
from elastic_c10d import C10dRendezvousBackend, plugin
from elastic_c10d.server import StoreServer

from elastic_core.errors import ConfigurationError, RendezvousConnectionError
from elastic_core.hooks.records import Context
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.rendezvous.versions import Keys

pytestmark = pytest.mark.torch


def record(name):
    return next(record for record in plugin.elastic_rendezvous_backends() if record.name == name)


@pytest.fixture
def observe():
    """Opens backends of the run `job` at an endpoint, closed at the end."""
    opened = []

    def observe(endpoint, name="c10d", **config):
        config = {**{option.name: option.default for option in record(name).options}, "join_timeout": 20.0, **config}
        backend = record(name).open_backend(Context(), RendezvousParameters(name, endpoint, "job", 1, 1, **config))
        opened.append(backend)
        return backend

    yield observe
    for backend in opened:
        backend.close()


@pytest.fixture
def server(free_port):
    server = record("c10d").serve(Context(), f"127.0.0.1:{free_port()}", 2)
    server.start()
    yield server
    server.stop()


def test_observer_never_hosts(observe, free_port):
    port = free_port()
    with pytest.raises(RendezvousConnectionError, match=f"127.0.0.1:{port}"):
        observe(f"127.0.0.1:{port}", join_timeout=1.0).roster()
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free


@pytest.mark.parametrize("name", ["c10d", "static"])
def test_observer_does_not_initialize_a_store(observe, server, name):
    from torch.distributed import TCPStore

    host, port = server.endpoint.split(":")
    store = TCPStore(host, int(port), None, False, wait_for_workers=False)
    backend = observe(server.endpoint, name)
    assert backend.roster() == ()
    assert backend.get_state() is None
    assert not store.check([Keys("job").id])


def test_observer_reads_the_roster_and_can_write_the_state(observe, server):
    from elastic_c10d.endpoint import parse_endpoint
    from elastic_c10d.tcp_connector import TcpConnector

    node = C10dRendezvousBackend(TcpConnector(parse_endpoint(server.endpoint)), "job")
    try:
        node.announce("a/1", b"entry")
        written = node.set_state(b"one")
        backend = observe(server.endpoint)
        (seen,) = backend.roster()
        assert (seen.key, seen.entry) == ("a/1", b"entry")
        node.beat("a/1", False, False)
        assert backend.roster()[0].beats != seen.beats
        state, token = backend.get_state()
        assert state == b"one"
        assert backend.set_state(b"two", token)[2]
        assert node.wait_for_state(written[1], 20)
        assert node.get_state()[0] == b"two"
    finally:
        node.close()


def test_observer_does_not_create_the_file(observe, tmp_path):
    with pytest.raises(RendezvousConnectionError, match=r"the store's file .* does not exist"):
        observe(str(tmp_path / "store"), store_type="file")
    assert not (tmp_path / "store").exists()


def test_server_reports_its_endpoint_and_stops(observe, server):
    assert isinstance(server, StoreServer)
    assert observe(server.endpoint).roster() == ()
    with pytest.raises(ConfigurationError, match="cannot listen on"):
        record("c10d").serve(Context(), server.endpoint, 2).start()
    server.stop()
    with pytest.raises(RendezvousConnectionError):
        observe(server.endpoint, join_timeout=1.0).roster()


def test_server_listens_on_all_addresses(free_port):
    port = free_port()
    server = record("c10d").serve(Context(), f"0.0.0.0:{port}", 2)
    server.start()
    try:
        assert server.endpoint == f"0.0.0.0:{port}"
        socket.create_connection(("127.0.0.1", port), 60).close()
    finally:
        server.stop()

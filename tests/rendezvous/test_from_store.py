"""A registered store provides a rendezvous backend of the same name."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from elastic_testing import eventually

from elastic_core.builtin import MemoryStore
from elastic_core.compat.backends import of_store
from elastic_core.config import Settings
from elastic_core.errors import ConfigurationError, Problem, RendezvousConnectionError
from elastic_core.hooks.records import Context, Option, StoreRecord
from elastic_core.interfaces.node import Node
from elastic_core.plugin import BACKEND_OPTIONS
from elastic_core.rendezvous import RendezvousParameters

URL = Option("url", str, None, "the server")
LIMIT_S = 60


class Server:
    """An in-process store instead of a shared server. `given` has the options that the factory received."""

    def __init__(self):
        self.store = MemoryStore()
        self.given = []
        self.fault = None

    def create(self, context):
        options = context.options
        self.given.append(dict(options))
        if self.fault is not None:
            raise self.fault
        return Client(self.store)


class Client:
    """One connection. It counts open connections and fails if two threads use it together."""

    open = 0

    def __init__(self, store):
        self._store = store
        self._busy = threading.Lock()
        Client.open += 1

    def close(self):
        Client.open -= 1

    def __getattr__(self, name):
        method = getattr(self._store, name)

        def call(*arguments):
            assert self._busy.acquire(blocking=False), "two threads use one connection"
            try:
                return method(*arguments)
            finally:
                self._busy.release()

        return call


@pytest.fixture
def server():
    Client.open = 0
    return Server()


def record(server, *options, **fields):
    return of_store(StoreRecord("mine", "a server of mine", server.create, options or (URL,), **fields))


def parameters(endpoint="mine://here", nodes=(1, 1), name="a", **config):
    node = Node(name, name)
    return RendezvousParameters(
        "mine", endpoint, "job", *nodes, "127.0.0.1", node, **{"last_call_timeout": 0, **config}
    )


def test_backend_has_name_and_options_of_its_store(server):
    known = Option("join_timeout", float, 1.0, "a name that every backend has")
    backend = record(server, URL, known, Option("ttl", float, 3.0, "its own"), aliases=("my",))
    assert (backend.name, backend.aliases) == ("mine", ("my",))
    assert backend.summary == "nodes meet at a server of mine"
    names = [option.name for option in backend.options]
    assert names == [*(option.name for option in BACKEND_OPTIONS), "outage_grace", "ttl"]
    assert not backend.forkable


@pytest.mark.integration
def test_two_nodes_form_a_round_and_connections_are_closed(server):
    backend = record(server)
    handlers = [backend.factory(Context(), parameters(nodes=(2, 2), name=name)) for name in "ab"]
    with ThreadPoolExecutor() as pool:
        rounds = [future.result(LIMIT_S) for future in [pool.submit(each.next_rendezvous) for each in handlers]]
    assert sorted(info.rank for info in rounds) == [0, 1]
    assert {info.world_size for info in rounds} == {2}
    rounds[0].store.set("key", "value")
    assert rounds[1].store.get("key") == b"value"
    assert all(handler.shutdown() for handler in handlers)
    eventually(lambda: Client.open == 0)


@pytest.mark.integration
def test_observer_sees_the_job_and_writes_nothing(server):
    backend = record(server)
    assert backend.open_backend(Context(), parameters()).get_state() is None
    assert server.store.num_keys() == 0
    handler = backend.factory(Context(), parameters())
    handler.next_rendezvous()
    assert backend.open_backend(Context(), parameters()).get_state() is not None
    handler.shutdown()


@pytest.mark.parametrize(
    ("names", "endpoint", "given"),
    [
        (("endpoint", "url"), "a:1,b:2", {"endpoint": "a:1,b:2", "url": None}),
        (("url", "path"), "mine://here", {"url": "mine://here", "path": None}),
        (("path",), "/shared/file", {"path": "/shared/file"}),
        (("host", "port"), "[fe80::1]:29", {"host": "fe80::1", "port": 29}),
        (("host", "port"), "here", {"host": "here", "port": None}),
        (("url",), "", {"url": None}),
    ],
)
def test_endpoint_becomes_an_option_of_the_store(server, names, endpoint, given):
    backend = record(server, *(Option(name, str, None, "a place") for name in names))
    defaults = {option.name: option.default for option in backend.options}
    backend.open_backend(Context(), parameters(endpoint, **defaults)).get_state()
    assert server.given == [given]


@pytest.mark.parametrize(("names", "endpoint"), [(("size",), "here:1"), (("host", "port"), "here:70000")])
def test_unusable_endpoint_is_an_error(server, names, endpoint):
    backend = record(server, *(Option(name, str, None, "a place") for name in names))
    (problem,) = backend.problems(Settings(rdzv_endpoint=endpoint))
    assert str(problem).startswith(f"--rdzv-endpoint: cannot use {endpoint!r} for the store: ")
    for make in (backend.factory, backend.open_backend):
        with pytest.raises(ConfigurationError, match=r"--rdzv-endpoint: cannot use"):
            make(Context(), parameters(endpoint))


def test_negative_outage_grace_is_an_error(server):
    with pytest.raises(
        ConfigurationError, match=r"--rdzv-conf: outage_grace: expected a number of seconds >= 0, found -1"
    ):
        record(server).factory(Context(), parameters(outage_grace=-1))


def test_store_without_declared_options_gets_all_options(server):
    backend = of_store(StoreRecord("mine", "a server of mine", server.create, None))
    assert backend.options is None
    backend.open_backend(Context(), parameters(colour="red")).get_state()
    assert server.given[0]["colour"] == "red"
    assert server.given[0]["endpoint"] == "mine://here"


def test_factory_fault_is_an_outage_unless_it_can_never_work(server):
    backend = record(server)
    server.fault = OSError("no server")
    with pytest.raises(RendezvousConnectionError, match="connecting at mine://here failed: no server"):
        backend.open_backend(Context(), parameters()).get_state()
    for server.fault in (ConfigurationError("no such place"), ModuleNotFoundError("no such client")):
        handler = backend.factory(Context(), parameters())
        with pytest.raises(ConfigurationError, match="no such"):
            handler.next_rendezvous()
        handler.shutdown()


def test_backend_has_hooks_of_its_store(server):
    usual, missing = {"rdzv_endpoint": ("here:1", "the usual")}, Problem("--rdzv-conf", "a size is required")
    described = {"defaults": lambda _: usual, "problems": lambda _: [missing]}
    backend = record(server, **described, hosts_of=lambda _: [("here", 1)])
    assert backend.defaults(Settings()) == usual
    assert list(backend.problems(Settings(rdzv_endpoint="here:1"))) == [missing]
    assert backend.hosts_of(None) == [("here", 1)]

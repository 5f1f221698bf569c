"""The workers' store with torch's handlers: all members of a round get the same address, a new one in each round."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from elastic_core.compat.backends import NOT_SHARED, TorchrunHandler, store_not_shared

LONG = 60.0
SHORT = 0.5
MAX_NODES = 3  # nodes of a round


def environment():
    return os.environ.get(NOT_SHARED)


class VariableRecorder:
    """Records the variable's value in each call."""

    def __init__(self):
        self.seen = []

    def next_rendezvous(self):
        self.seen.append(environment())
        return "round"

    @property
    def use_agent_store(self):
        self.seen.append(environment())
        return False


def test_variable_is_set_only_during_calls():
    foreign = VariableRecorder()
    handler = TorchrunHandler(foreign)
    before = environment()
    assert (handler.next_rendezvous(), handler.use_agent_store) == ("round", False)
    assert (before, foreign.seen, environment()) == (None, ["1", "1"], None)


def test_variable_is_removed_after_an_error():
    with pytest.raises(ZeroDivisionError), store_not_shared():
        raise ZeroDivisionError
    assert environment() is None


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_users_value_is_kept(value, monkeypatch):
    monkeypatch.setenv(NOT_SHARED, value)
    with store_not_shared(), store_not_shared():
        assert environment() == value
    assert environment() == value


def test_last_overlapping_call_removes_variable():
    first, second = store_not_shared(), store_not_shared()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert environment() == "1"
    second.__exit__(None, None, None)
    assert environment() is None


def test_many_threads_leave_no_variable():
    begin = threading.Barrier(8)

    def hold():
        begin.wait(LONG)
        for _ in range(200):
            with store_not_shared():
                assert environment() == "1"

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(hold) for _ in range(8)]:
            done.result(LONG)
    assert environment() is None


@pytest.fixture
def torchs():
    """torch's classes, which take seconds to import."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, c10d_rendezvous_backend
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    return SimpleNamespace(
        TCPStore=TCPStore,
        ConnectionError=RendezvousConnectionError,
        Backend=c10d_rendezvous_backend.C10dRendezvousBackend,
        Handler=dynamic.DynamicRendezvousHandler,
        Timeout=dynamic.RendezvousTimeout,
        Static=StaticTCPRendezvous,
    )


class DisconnectableBackend:
    """A torch backend that can be disconnected, as if its node had failed."""

    def __init__(self, backend, error):
        self.name = backend.name
        self.cut = False
        self._backend = backend
        self._error = error

    def get_state(self):
        self._check()
        return self._backend.get_state()

    def set_state(self, *args):
        self._check()
        return self._backend.set_state(*args)

    def _check(self):
        if self.cut:
            raise self._error("the node is lost")


class Nodes:
    """Nodes of one job in one process, each with its own address and torch's dynamic handler."""

    def __init__(self, torchs):
        self._torchs = torchs
        self._server = self._store(0, is_master=True)
        self._backend = torchs.Backend(self._server, "job")
        self._last_call = LONG
        self._pool = ThreadPoolExecutor(8)
        self._foreign = []
        self.backends = {}
        self.handlers = {}

    def _store(self, port, is_master=False):
        return self._torchs.TCPStore("127.0.0.1", port, None, is_master, wait_for_workers=False)

    def add(self, address):
        store = self._store(self._server.port)
        backend = self.backends[address] = DisconnectableBackend(
            self._torchs.Backend(store, "job"), self._torchs.ConnectionError
        )
        # A node that is silent for a minute has failed. Even a slow machine does not delay one that long.
        foreign = self._torchs.Handler.from_backend(
            "job", store, backend, 2, MAX_NODES, address, self._timeout(), 1, int(LONG)
        )
        self._foreign.append(foreign)
        self.handlers[address] = TorchrunHandler(foreign)

    def _timeout(self):
        nodes = self

        class Timeout(self._torchs.Timeout):
            @property
            def last_call(self):
                return timedelta(seconds=nodes._last_call)

        return Timeout(join=timedelta(seconds=LONG))

    def lose(self, address):
        """Disconnect it, and make its last heartbeat an old one."""
        self.backends[address].cut = True
        written = False
        while not written:
            found, token = self._backend.get_state()
            state = pickle.loads(found)
            (lost,) = (node for node in state.last_heartbeats if node.addr == address)
            state.last_heartbeats[lost] = datetime.fromtimestamp(0, timezone.utc)
            *_, written = self._backend.set_state(pickle.dumps(state), token)

    def form(self, *addresses):
        """The nodes' next round: their store addresses in rank order. A full round waits for the last node, however
        late it joins; in any other, the wait for more nodes must be ended."""
        self._last_call = LONG if len(addresses) == MAX_NODES else SHORT
        joining = [self._pool.submit(self.handlers[address].next_rendezvous) for address in addresses]
        infos = sorted((future.result(LONG) for future in joining), key=lambda info: info.rank)
        assert [info.world_size for info in infos] == [len(addresses)] * len(addresses)
        return [(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos]

    def end(self):
        for foreign in self._foreign:
            foreign.shutdown()
        self._pool.shutdown()


@pytest.fixture
def nodes(torchs):
    nodes = Nodes(torchs)
    yield nodes
    nodes.end()


@pytest.mark.torch
def test_all_members_get_same_new_address_each_round(nodes):
    """Also after rank 0 has failed, and after a node has joined."""
    a, b, c, d = (f"127.0.0.{last}" for last in range(1, 5))
    for address in (a, b, c):
        nodes.add(address)
    first = nodes.form(a, b, c)
    assert first == [(a, first[0][1])] * 3
    nodes.lose(a)
    second = nodes.form(b, c)
    assert second == [(b, second[0][1])] * 2
    nodes.add(d)
    third = nodes.form(b, c, d)
    assert third == [(b, third[0][1])] * 3
    assert second[0][1] != third[0][1]
    assert [handler.use_agent_store for handler in nodes.handlers.values()] == [False] * 4
    assert environment() is None


@pytest.mark.torch
def test_static_handler_reports_its_shared_store(torchs):
    server = torchs.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, multi_tenant=True)
    members = [TorchrunHandler(torchs.Static("127.0.0.1", server.port, rank, 2, "job", int(LONG))) for rank in (0, 1)]
    assert [member.use_agent_store for member in members] == [True, True]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            infos = list(pool.map(TorchrunHandler.next_rendezvous, members, timeout=LONG))
            places = [info.bootstrap_store_info for info in infos]
            assert [(place.master_addr, place.master_port) for place in places] == [("127.0.0.1", server.port)] * 2
            assert [info.rank for info in infos] == [0, 1]

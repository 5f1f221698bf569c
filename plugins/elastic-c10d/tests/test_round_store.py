"""The store that a round's members share is a complete torch store, with every kind of rendezvous."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import threading
from datetime import timedelta

import pytest
from elastic_c10d.create import file_connector, round_stores
from elastic_c10d.torch_store import distributed
from elastic_testing import Background, StoreContract, eventually, rendezvous_parameters

from elastic_core.errors import ConfigurationError
from elastic_core.rendezvous import get_rendezvous_handler

LIMIT = timedelta(seconds=20)


@pytest.fixture(scope="module", autouse=True)
def no_connecting_threads_left():
    """An abandoned torch constructor runs until its timeout. If it returned while the interpreter ends, the process
    would abort."""
    before = set(threading.enumerate())  # threads of other modules have other timeouts

    def connecting():
        return [thread for thread in set(threading.enumerate()) - before if thread.name == "rendezvous-connect"]

    yield
    eventually(lambda: not connecting(), 60)


@pytest.fixture
def handlers(free_port, tmp_path):
    """Makes the two nodes of a job; shut down at the end."""
    made = []

    def make(kind):
        endpoint = str(tmp_path / "store") if kind == "file" else f"127.0.0.1:{free_port()}"
        backend = "c10d" if kind == "tcp" else kind
        for rank in (0, 1):
            own = {"rank": rank} if kind == "static" else {}
            made.append(get_rendezvous_handler(rendezvous_parameters(backend, endpoint, "job", 2, 2, **own)))
        return made

    yield make
    for handler in sorted(made, key=lambda handler: handler.hosts_store):  # the host leaves last
        handler.shutdown()


def stores_of(handlers):
    """Form the next round; returns its stores by rank."""
    joining = [Background(handler.next_rendezvous) for handler in handlers]
    found = [call.result() for call in joining]
    for info in found:
        info.store.set_timeout(LIMIT)
    return [info.store for info in sorted(found, key=lambda info: info.rank)]


class RoundStoreContract(StoreContract):
    kind = "tcp"
    under_prefix_store = False

    @pytest.fixture
    def store(self, handlers):
        stores = stores_of(handlers(self.kind))
        assert all(isinstance(store, distributed().Store) for store in stores)
        if self.under_prefix_store:
            stores = [distributed().PrefixStore("outer", distributed().PrefixStore("inner", store)) for store in stores]
        store, self.other = stores
        return store

    def peer(self, store):
        return self.other


class TestTcpRoundStore(RoundStoreContract):
    pass


class TestStaticRoundStore(RoundStoreContract):
    kind = "static"
    under_prefix_store = True


class TestFileRoundStore(RoundStoreContract):
    kind = "file"
    tells_deletion = False


@pytest.mark.parametrize("kind", ["tcp", "static", "file"])
def test_next_rounds_store_is_empty(handlers, kind):
    nodes = handlers(kind)
    first, _ = stores_of(nodes)
    first.set("key", "of the first round")
    first.multi_set(["a", "b"], ["1", "2"])
    assert first.num_keys() == 3
    second, other = stores_of(nodes)
    assert not second.check(["key"])
    assert second.num_keys() == other.num_keys() == 0
    assert second.list_keys() == []


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_timeout_change_affects_one_store_only(handlers, kind):
    first, second = stores_of(handlers(kind))
    distributed().PrefixStore("p", first).set_timeout(timedelta(milliseconds=200))
    assert (first.timeout, second.timeout) == (timedelta(milliseconds=200), LIMIT)
    with pytest.raises(RuntimeError, match=r"[Tt]imeout"):
        first.get("never")


def test_round_store_timeout_does_not_affect_the_rendezvous(tmp_path):
    connector = file_connector(str(tmp_path / "store"))
    before = connector.connect().store.timeout
    stores = round_stores(connector, "job", lambda: "127.0.0.1")
    store = stores.open("1-a", stores.reserve(), is_host=False)
    store.set_timeout(timedelta(milliseconds=1))
    store.set("key", "value")
    assert connector.connect().store.timeout == before
    stores.release()


def test_prefix_store_keeps_its_round_store_alive(handlers):
    first, second = (distributed().PrefixStore("p", store) for store in stores_of(handlers("tcp")))
    gc.collect()
    first.set("key", "value")
    assert second.get("key") == b"value"


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_clone_shares_the_keys(handlers, kind):
    first, second = stores_of(handlers(kind))
    first.clone().set("key", "value")
    assert second.clone().get("key") == b"value"


def test_tcp_round_store_supports_queues(handlers):
    first, second = stores_of(handlers("tcp"))
    first.queue_push("queue", "one")
    assert first.queue_len("queue") == second.queue_len("queue") == 1
    assert second.queue_pop("queue") == b"one"


def test_file_round_store_refuses_queues(handlers):
    first, _ = stores_of(handlers("file"))
    with pytest.raises(NotImplementedError):
        first.queue_push("queue", "one")


@pytest.mark.parametrize("left", [0, 2, 8])  # torch would fail, abort, or retry for five minutes
def test_no_server_starts_without_free_file_descriptors(tmp_path, left):
    stores = round_stores(file_connector(str(tmp_path / "store")), "job", lambda: "127.0.0.1")
    where = stores.reserve()
    gc.collect()  # torch's FileStore aborts the process if one is collected while no descriptor is free
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 16, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                used.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(used.pop())
        with pytest.raises(ConfigurationError, match="ulimit -n: this process cannot open 12 files"):
            stores.open("1-a", where, is_host=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in used:
            os.close(descriptor)
    stores.open("1-a", where, is_host=True)
    stores.release()

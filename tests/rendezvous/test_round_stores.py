from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from elastic_core.builtin import MemoryStore
from elastic_core.rendezvous.round_stores import MadeStores, PrefixedStore, PrefixedStores, StoreOnFirstUse

pytestmark = pytest.mark.integration


@pytest.fixture
def stores():
    made = PrefixedStores(MemoryStore(timedelta(seconds=0.1)), "job", "10.0.0.1")
    yield made
    made.release()


def free(port):
    """Whether another process could bind the port."""
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::", port))
        except OSError:
            return False
    return True


def test_port_is_held_until_release(stores):
    where = stores.reserve()
    assert where.master_addr == "10.0.0.1"
    assert not free(where.master_port)
    stores.release()
    stores.release()
    assert free(where.master_port)


def test_new_reservation_replaces_the_previous_one(stores):
    first = stores.reserve()
    second = stores.reserve()
    assert second.master_port != first.master_port
    assert free(first.master_port)
    assert not free(second.master_port)


def test_rank_0_keeps_its_port_and_other_ranks_release_theirs(stores):
    where = stores.reserve()
    stores.open("1-a", where, is_host=True)
    assert not free(where.master_port)
    stores.open("2-a", where, is_host=False)
    assert free(where.master_port)


def test_rounds_share_no_keys(stores):
    where = stores.reserve()
    one, two = stores.open("1-a", where, True), stores.open("2-a", where, True)
    one.set("key", "1")
    assert not two.check(["key"])
    two.set("key", "2")
    assert (one.get("key"), two.get("key")) == (b"1", b"2")


def test_prefixed_store_has_all_operations():
    inner = MemoryStore(timedelta(seconds=0.1))
    store = PrefixedStore("p", inner)
    assert store.add("n", 2) == 2
    assert store.add("n", 3) == 5
    assert inner.get("p/n") == b"5"
    assert store.compare_set("c", "", "x") == b"x"
    assert store.compare_set("c", "y", "z") == b"x"
    assert store.check(["n", "c"])
    store.wait(["n"])
    store.wait(["n"], timedelta(seconds=1))
    assert store.delete_key("n")
    assert not store.delete_key("n")
    assert store.num_keys() == inner.num_keys() == 1
    with pytest.raises(TimeoutError):
        store.get("missing")
    with pytest.raises(TimeoutError):
        store.wait(["missing"], timedelta(seconds=0.01))


@pytest.mark.torch
def test_rounds_of_a_torch_store_get_torch_stores():
    from torch.distributed import HashStore, PrefixStore

    stores = PrefixedStores(HashStore(), "job", "10.0.0.1")
    where = stores.reserve()
    one, two = stores.open("1-a", where, True), stores.open("2-a", where, True)
    assert isinstance(one, PrefixStore)
    one.multi_set(["key"], ["1"])
    assert not two.check(["key"])
    stores.release()


class Closable(MemoryStore):
    closed = 0

    def close(self):
        Closable.closed += 1


def test_made_store_is_lazy_and_closed_with_its_round():
    made = []

    def make():
        made.append(Closable())
        return made[-1]

    stores = MadeStores(lambda name: StoreOnFirstUse(make, f"round/{name}"), "10.0.0.1")
    stores.open("1-a", stores.reserve(), True)
    used = stores.open("2-a", stores.reserve(), True)
    assert (made, Closable.closed) == ([], 0)
    used.set("key", "value")
    assert made[0].get("round/2-a/key") == b"value"
    stores.reserve()
    assert (len(made), Closable.closed) == (1, 1)
    stores.release()
    assert Closable.closed == 1

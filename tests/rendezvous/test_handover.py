"""The order in which nodes take over a store, and the pointers that lead to it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from store_place import KEYS, Place

from elastic_core.builtin import MemoryStore
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.handover import Pointer, turn
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.store_backend import StoreBackend
from elastic_core.rendezvous.store_connection import FactoryConnector, StoreConnection
from elastic_core.rendezvous.versions import Versions

HEIRS = ["b", "c", "d"]
LONG = 60.0


@pytest.mark.parametrize(
    ("own", "listed", "expected"),
    [
        (["b"], True, 0),
        (["c"], True, 1),
        (["d", "x"], True, 2),
        (["b"], False, 3),
        (["d"], False, 5),
        (["x"], True, None),
        ([], False, None),
    ],
)
def test_heirs_at_the_endpoint_come_first(own, listed, expected):
    assert turn(HEIRS, own, listed) == expected


class Connection(StoreConnection):
    """A connection to a store in memory."""

    def __init__(self):
        super().__init__(MemoryStore(timedelta(seconds=LONG)), "here")
        self.released = threading.Event()

    def release(self):
        self.released.set()


class Endpoint:
    """A connection to it succeeds once `may` is set; `looks` is set when a node tries."""

    def __init__(self):
        self.connection = Connection()
        self.looks, self.may = threading.Event(), threading.Event()

    def at_the_endpoint(self):
        self.looks.set()
        assert self.may.wait(LONG)
        yield self.connection


@pytest.mark.parametrize("closed", [True, False])
def test_closed_pointer_is_not_published_late(closed):
    """The store there may be the heir's."""
    endpoint = Endpoint()
    pointer = Pointer(endpoint, "job", HmacSeal("job"), "there:1")
    assert endpoint.looks.wait(LONG)
    if closed:
        pointer.close()
    endpoint.may.set()
    assert endpoint.connection.released.wait(LONG)
    assert (endpoint.connection.store.num_keys() == 0) == closed
    pointer.close()


class Mover:
    """A fake StoreMover: serves one store in memory and records where it moved."""

    listed = True

    def __init__(self):
        self.place, self.followed = Place(), ""
        self.looks_at_endpoint = threading.Event()

    def serve(self):
        return "here:1", StoreConnection(self.place.client(), "here")

    def stop_serving(self):
        raise AssertionError

    def moved(self, where):
        self.followed = where

    def connected_to(self, where):
        return where == self.followed

    def at_the_endpoint(self):
        self.looks_at_endpoint.set()
        return iter(())


class Connector(FactoryConnector):
    """Connects to the old store, or to the mover's store after the move."""

    def __init__(self, old, mover):
        super().__init__(lambda: (mover.place if mover.followed else old).client(), "a store")
        self._mover = mover

    @property
    def hosts(self):
        return bool(self._mover.followed)


@pytest.mark.parametrize("lands", [True, False])
def test_heir_that_loses_an_answer_retries_and_leaves_pointers(lands):
    old, mover = Place().begin(), Mover()
    host = Versions(KEYS, HmacSeal("job"))
    host.write(old.store, b"state", 0)
    node = StoreBackend(Connector(old, mover), "job", mover=mover)
    node.announce("a/1", b"entry")
    host.freeze(old.store, ["a/1"])
    old.lose("compare_set", KEYS.moved, lands)
    with pytest.raises(RendezvousConnectionError):
        node.get_state()
    assert node.get_state()[0] == b"state"
    assert mover.followed == "here:1"
    assert mover.looks_at_endpoint.wait(LONG)
    node.close()


class SlowConnection(StoreConnection):
    """Every wait takes longer than it may, although the key is there."""

    def fetch(self, key, timeout, closed):
        return None


@pytest.mark.parametrize("heirs", [["a/1"], ["b/1", "a/1"]])
@pytest.mark.parametrize("moved", ["there:1", ""])
def test_heir_of_a_slow_store_serves_no_second_store(heirs, moved):
    class Served(Mover):
        def serve(self):
            raise AssertionError("another node has been faster, or the store stays")

    class Slow(Connector):
        def connect(self, aside=False):
            return SlowConnection(self._make(), "a store")

    old, mover, seal = Place().begin(), Served(), HmacSeal("job")
    host = Versions(KEYS, seal)
    host.write(old.store, b"state", 0)
    node = StoreBackend(Slow(old, mover), "job", mover=mover)
    node.announce("a/1", b"entry")
    host.freeze(old.store, heirs)
    old.store.set(KEYS.moved, seal.sealed(KEYS.moved, moved.encode()))
    assert node.get_state() is None  # a new store, or a new epoch in the same one
    assert mover.followed == moved
    node.close()


def test_marker_in_a_store_that_never_moves_begins_a_new_epoch():
    place = Place().begin()
    node = place.backend()
    node.set_state(b"state")
    Versions(KEYS, HmacSeal("job")).freeze(place.store, ["a/1"])
    assert node.get_state() is None
    assert place.store.get(KEYS.id) != KEYS.epoch.encode()
    place.close()

"""The order in which nodes take over a store, and the pointers that lead to it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from elastic_testing import FakeClock, eventually
from store_place import KEYS, Place

from elastic_core.builtin import MemoryStore
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.handover import POINTER_PATIENCE, STAYS, Pointer, turn
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


@pytest.mark.integration
@pytest.mark.parametrize("left", [b"0:1", b"0", b"\xff", STAYS.encode(), b"127.0.0.1:1"])
@pytest.mark.parametrize("secrets", [[], [b"s" * 32]])
def test_host_does_not_yield_to_a_pointer_that_leads_nowhere(secrets, left):
    """A host that has ended or a client wrote it."""
    endpoint, seal = Endpoint(), HmacSeal("job", secrets)
    store = endpoint.connection.store
    store.set(KEYS.id, KEYS.epoch)
    endpoint.may.set()
    pointer = Pointer(endpoint, "job", seal, "there:1")
    for _ in range(3):
        eventually(lambda: store.check([KEYS.moved]) and seal.opened(KEYS.moved, store.get(KEYS.moved)) == b"there:1")
        assert seal.refused == 0
        store.set(KEYS.moved, seal.sealed(KEYS.moved, left))
    assert pointer.overtaken_at == ""
    pointer.close()


class Mover:
    """A fake StoreMover: serves one store in memory and records where it moved."""

    listed = True

    def __init__(self):
        self.place, self.followed = Place(), ""
        self.serves = False
        self.looks_at_endpoint = threading.Event()

    def serve(self):
        self.serves = True
        return "here:1", StoreConnection(self.place.client(), "here")

    def stop_serving(self, unless=""):
        self.serves = self.serves and unless == "here:1"

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


def frozen(mover, connector=Connector, heirs=("a/1",)):
    """A store whose host hands it over to these heirs, and the backend of node a, which has this mover."""
    old, host = Place().begin(), Versions(KEYS, HmacSeal("job"))
    host.write(old.store, b"state", 0)
    node = StoreBackend(connector(old, mover), "job", mover=mover)
    node.announce("a/1", b"entry")
    host.freeze(old.store, list(heirs))
    return old, node


@pytest.mark.parametrize("lands", [True, False])
def test_heir_that_loses_an_answer_retries_and_leaves_pointers(lands):
    mover = Mover()
    old, node = frozen(mover)
    old.lose("compare_set", KEYS.moved, lands)
    with pytest.raises(RendezvousConnectionError):
        node.get_state()
    assert node.get_state()[0] == b"state"
    assert mover.followed == "here:1"
    assert mover.looks_at_endpoint.wait(LONG)
    node.close()


class SlowConnection(StoreConnection):
    """Every wait times out, even if the key exists."""

    def fetch(self, key, timeout, closed):
        return None


class SlowConnector(Connector):
    def connect(self, aside=False):
        return SlowConnection(self._make(), "a store")


@pytest.mark.parametrize("heirs", [["a/1"], ["b/1", "a/1"], ["b/1"]])
@pytest.mark.parametrize("moved", ["there:1", STAYS])
def test_node_on_a_slow_store_finds_the_record_of_its_move(heirs, moved):
    class NotServing(Mover):
        def serve(self):
            raise AssertionError("another node was faster, or the store stays")

    mover = NotServing()
    old, node = frozen(mover, SlowConnector, heirs)
    old.store.set(KEYS.moved, HmacSeal("job").sealed(KEYS.moved, moved.encode()))
    found = node.get_state()
    if moved == STAYS:  # a new epoch in the same store, with the same state
        assert (found[0], mover.followed) == (b"state", "")
    else:  # a new store
        assert (found, mover.followed) == (None, moved)
    node.close()


class HostConnector(Connector):
    hosts = True


@pytest.mark.parametrize(("secrets", "loses"), [([], False), ([b"s" * 32], False), ([], True)])
def test_heir_that_is_too_late_stops_its_store(secrets, loses):
    """The host gives up while the heir starts its store. It may have lost the answer to its marker and tried again."""

    class LateHeir(Mover):
        def serve(self):
            assert not gives_up.result(LONG)
            return super().serve()

    old, mover, seal = Place().begin(), LateHeir(), HmacSeal("job", secrets)
    host = StoreBackend(HostConnector(old, Mover()), "job", mover=Mover())
    node = StoreBackend(Connector(old, mover), "job", mover=mover)
    for backend, key in ((host, "b/1"), (node, "a/1")):
        backend.sign_with(seal)
        backend.announce(key, b"entry")
    host.set_state(b"state")
    if loses:
        old.lose("compare_set", KEYS.state(2), lands=True)
        with pytest.raises(RendezvousConnectionError):
            host.hand_over(["a/1"], 0.2)
    with ThreadPoolExecutor() as threads:
        gives_up = threads.submit(host.hand_over, ["a/1"], 0.2)
        while not gives_up.done():
            node.get_state()
            time.sleep(0.001)
    assert (mover.followed, mover.serves) == ("", False)
    host.announce("b/1", b"entry")
    standing, token, written = host.set_state(b"again")
    assert (standing, written) == (b"state", False)
    assert host.set_state(b"again", token)[2]
    assert node.get_state()[0] == b"again"
    for backend in (host, node):
        backend.close()


def test_observer_does_not_use_up_the_state_of_a_store_that_was_kept():
    mover = Mover()
    old, node = frozen(mover)
    old.store.set(KEYS.moved, HmacSeal("job").sealed(KEYS.moved, STAYS.encode()))
    observer = StoreBackend(Connector(old, mover), "job", observes=True, mover=Mover())
    with pytest.raises(RendezvousConnectionError, match="no node has used it since"):
        observer.get_state()
    assert old.store.get(KEYS.id) == KEYS.epoch.encode()
    assert node.get_state()[0] == observer.get_state()[0] == b"state"
    for backend in (node, observer):
        backend.close()


def test_state_of_a_store_that_stays_survives_a_lost_answer():
    """The node has begun the next epoch, but does not know it."""
    old, node = frozen(Mover())
    old.store.set(KEYS.moved, HmacSeal("job").sealed(KEYS.moved, STAYS.encode()))
    old.lose("compare_set", KEYS.id, True, KEYS.epoch.encode())
    with pytest.raises(RendezvousConnectionError):
        node.get_state()
    assert old.store.get(KEYS.id) != KEYS.epoch.encode()
    assert node.get_state()[0] == b"state"
    node.close()


@pytest.mark.parametrize("begins", [False, True], ids=["heir begins the epoch", "another node begins it"])
def test_heir_that_failed_to_record_its_store_stops_it(begins):
    mover = Mover()
    old, node = frozen(mover)
    old.lose("compare_set", KEYS.moved, lands=False)
    with pytest.raises(RendezvousConnectionError):
        node.get_state()
    assert mover.serves
    old.store.set(KEYS.moved, HmacSeal("job").sealed(KEYS.moved, STAYS.encode()))
    if begins:
        other = StoreBackend(Connector(old, Mover()), "job", mover=Mover())
        assert other.get_state()[0] == b"state"
        other.close()
    assert node.get_state()[0] == b"state"  # in a new epoch of the old store
    assert (mover.followed, mover.serves) == ("", False)
    node.close()


def test_late_heir_does_not_take_over_after_the_host_was_given_up():
    """The host has recorded nothing. The other node has continued in its store while the heir was starting a store."""
    clock = FakeClock()

    class LateHeir(Mover):
        def serve(self):
            with pytest.raises(RendezvousConnectionError, match="no other node hosts it yet"):
                other.get_state()
            clock.advance(POINTER_PATIENCE)
            state, token = other.get_state()
            assert other.set_state(state + b" and more", token)[2]
            return super().serve()

    late = LateHeir()
    old, heir = frozen(late)
    other = StoreBackend(Connector(old, Mover()), "job", clock=clock, mover=Mover())
    assert heir.get_state()[0] == b"state and more"
    assert (late.followed, late.serves) == ("", False)
    for backend in (heir, other):
        backend.close()


@pytest.mark.parametrize("count", [2, 8])
def test_nodes_that_begin_an_epoch_together_leave_one_copy_of_the_state(count):
    old, first = frozen(Mover())
    nodes = [first, *(StoreBackend(Connector(old, Mover()), "job", mover=Mover()) for _ in range(count - 1))]
    old.store.set(KEYS.moved, HmacSeal("job").sealed(KEYS.moved, STAYS.encode()))
    together, begin = threading.Barrier(count), old.entered

    def entered(operation, arguments):
        if operation == "compare_set" and arguments[:2] == (KEYS.id, KEYS.epoch.encode()):
            together.wait(LONG)
        begin(operation, arguments)

    old.entered = entered
    before = old.store.num_keys()
    with ThreadPoolExecutor(count) as threads:
        assert [state for state, _ in threads.map(StoreBackend.get_state, nodes)] == [b"state"] * count
    assert old.store.num_keys() <= before + 5  # of the epoch that has begun
    for backend in nodes:
        backend.close()


def test_host_that_repeats_a_handover_leaves_the_heirs_store_alone():
    """It lost the answer to its marker. Meanwhile, the nodes have moved to the heir's store."""

    class UntilItMoves(Connector):
        @property
        def hosts(self):
            return not self._mover.followed

    old, serving, leaving = Place().begin(), Mover(), Mover()
    leaving.place = serving.place
    host = StoreBackend(UntilItMoves(old, leaving), "job", mover=leaving)
    heir = StoreBackend(Connector(old, serving), "job", mover=serving)
    host.set_state(b"state")
    heir.announce("a/1", b"entry")
    old.lose("compare_set", KEYS.state(2), lands=True)
    with pytest.raises(RendezvousConnectionError):
        host.hand_over(["a/1"], LONG)
    _, token = heir.get_state()
    heir.announce("a/1", b"entry")
    assert heir.set_state(b"newer", token)[2]
    host.hand_over(["a/1"], LONG)
    assert not host.hosts_store
    assert heir.get_state()[0] == b"newer"
    assert serving.serves
    for backend in (host, heir):
        backend.close()


def test_marker_in_a_store_that_never_moves_begins_a_new_epoch(place):
    node = place.backend()
    node.set_state(b"state")
    Versions(KEYS, HmacSeal("job")).freeze(place.store, ["a/1"])
    assert node.get_state() is None
    assert place.store.get(KEYS.id) != KEYS.epoch.encode()

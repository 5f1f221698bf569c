"""How nodes take over a store, in which order, and how forwards lead to it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from store_place import KEYS, Place

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.handover import Pointer, turn
from elastic_core.rendezvous.over_store import OverStore
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.store_connection import FactoryConnector, StoreConnection
from elastic_core.rendezvous.versions import KEPT, Forwarded, Keys, Versions

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
def test_in_the_order_of_the_heirs_those_at_the_endpoint_first(own, listed, expected):
    assert turn(HEIRS, own, listed) == expected


class Connection(StoreConnection):
    """To a store in memory."""

    def __init__(self):
        super().__init__(MemoryStore(timedelta(seconds=LONG)), "here")
        self.released = threading.Event()

    def release(self):
        self.released.set()


class Endpoint:
    """A store begins there when somebody looks, and stands once it may."""

    def __init__(self):
        self.connection = Connection()
        self.looks, self.may = threading.Event(), threading.Event()

    def at_the_endpoint(self):
        self.looks.set()
        assert self.may.wait(LONG)
        yield self.connection


@pytest.mark.parametrize("closed", [True, False])
def test_a_host_that_goes_points_at_no_store_any_more(closed):
    """It may be that of its heir."""
    endpoint = Endpoint()
    pointer = Pointer(endpoint, "job", HmacSeal("job"), "there:1")
    assert endpoint.looks.wait(LONG)
    if closed:
        pointer.close()
    endpoint.may.set()
    assert endpoint.connection.released.wait(LONG)
    assert (endpoint.connection.store.num_keys() == 0) == closed
    pointer.close()


class Broken:
    """A store client whose connection has broken."""

    def compare_set(self, *arguments):
        raise BrokenPipeError


class Mover:
    """A fake StoreMover: serves one store in memory, and follows every forward."""

    listed = True

    def __init__(self):
        self.place, self.served, self.followed = Place(), None, ""
        self.broken = False
        self.looks_at_endpoint = threading.Event()

    def serve(self):
        self.served = True
        store, self.broken = (Broken() if self.broken else self.place.client()), False
        return "here:1", StoreConnection(store, "here")

    def serve_no_more(self):
        self.served = False

    def moved(self, where):
        self.followed = where

    def leads_to(self, where):
        return where == self.followed

    def at_the_endpoint(self):
        self.looks_at_endpoint.set()
        return iter(())


class Connector(FactoryConnector):
    def __init__(self, client, mover):
        super().__init__(client, "a store")
        self._mover = mover

    @property
    def hosts(self):
        return bool(self._mover.served) and self._mover.followed == "here:1"


class Job:
    """A node and its store, which the host has offered to heirs, by default to this node."""

    def __init__(self, heirs=("a/1",), state=b"first"):
        self.old, self.mover = Place().begin(), Mover()
        self.others = Versions(KEYS, HmacSeal("job"))
        if state is not None:
            self.others.write(self.old.store, state, 0)
        self.node = OverStore(Connector(self._client, self.mover), "job", mover=self.mover)
        self.node.announce("a/1", b"entry")
        self.before = self.node.get_state()
        self.others.offer(self.old.store, heirs)

    def _client(self):
        return (self.mover.place if self.mover.followed == "here:1" else self.old).client()

    def write(self, state):
        assert self.others.write(self.old.store, state, self.others.number)[2]

    def takes_over(self):
        """Let the node take the store over. Returns the state that it finds in the new store."""
        found = self.node.get_state()
        assert (self.mover.served, self.mover.followed) == (True, "here:1")
        assert self.mover.looks_at_endpoint.wait(LONG)  # to leave a pointer
        return found and found[0]

    def forwarded(self):
        try:
            self.others.newest(self.old.store)
        except Forwarded as forward:
            return forward.where
        return ""


@pytest.fixture
def job():
    made = []

    def make(**options):
        made.append(Job(**options))
        return made[-1]

    yield make
    for one in made:
        one.node.close()


def write_forward(where, versions, store):
    versions.newest(store)
    assert versions.forward(store, where)


def test_heir_copies_a_version_written_after_its_first_copy(job):
    job = job()
    job.old.before("compare_set", KEYS.state(3), lambda: job.write(b"late"))
    assert job.takes_over() == b"late"
    assert job.forwarded() == "here:1"


def test_heir_copies_the_newest_of_many_later_versions(job):
    """The key for its forward is free again, because the version stored there was deleted."""
    job = job()
    job.old.before("compare_set", KEYS.state(3), lambda: [job.write(b"%d" % number) for number in range(KEPT + 6)])
    assert job.takes_over() == b"%d" % (KEPT + 5)
    assert job.forwarded() == "here:1"


def test_heir_replaces_a_newcomers_state_in_the_new_store(job):
    job = job()
    newcomer = job.mover.place.backend()
    newcomer.announce("n/1", b"newcomer")

    def write():
        job.write(b"late")
        assert newcomer.set_state(b"newcomer's", newcomer.get_state()[1])[2]

    job.old.before("compare_set", KEYS.state(3), write)
    assert job.takes_over() == newcomer.get_state()[0] == b"late"
    assert sorted(seen.key for seen in newcomer.roster()) == ["a/1", "n/1"]
    newcomer.close()


def test_late_heir_stops_its_store_and_follows_the_forward(job):
    job = job()
    job.mover.place.before("compare_set", Keys("job").id, lambda: write_forward("there:1", job.others, job.old.store))
    job.node.get_state()
    assert (job.mover.served, job.mover.followed) == (False, "there:1")


def test_heir_keeps_its_store_if_the_host_forwards_to_it(job):
    """The host found this store at the endpoint, and mistook it for one in which nodes had re-formed."""
    job = job()
    job.mover.place.before("compare_set", Keys("job").id, lambda: write_forward("here:1", job.others, job.old.store))
    assert job.takes_over() == b"first"


@pytest.mark.parametrize("lands", [True, False])
def test_heir_retries_a_forward_whose_answer_was_lost(job, lands):
    job = job()
    job.old.lose("compare_set", KEYS.state(3), lands)
    with pytest.raises(RendezvousConnectionError):
        job.node.get_state()
    assert not job.node.hosts_store
    assert job.takes_over() == b"first"
    assert job.node.hosts_store
    assert job.forwarded() == "here:1"


def test_heir_that_cannot_write_its_forward_stops_its_store(job):
    """The old host has failed, so the nodes start again at the endpoint."""
    job = job()
    job.old.lose("compare_set", KEYS.state(3), lands=False)
    with pytest.raises(RendezvousConnectionError):
        job.node.get_state()
    job.old.away = True
    with pytest.raises(RendezvousConnectionError):
        job.node.get_state()
    assert job.mover.served is False


def test_heir_whose_new_store_fails_begins_another_one(job):
    job = job()
    job.mover.broken = True
    with pytest.raises(RendezvousConnectionError):
        job.node.get_state()
    assert job.mover.served is False
    assert job.takes_over() == b"first"


@pytest.mark.parametrize("heirs", [("b/1",), (*(f"b/{number}" for number in range(60)), "a/1")])
def test_job_continues_while_an_offer_is_pending(job, heirs):
    """The offer names only another node, or many nodes ahead of this one."""
    job = job(heirs=heirs)
    job.write(b"second")
    state, token = job.node.get_state()
    assert state == b"second"
    assert job.node.set_state(b"third", token)[2]
    assert job.node.get_state()[0] == b"third"
    assert job.mover.served is None


def test_heir_waits_for_its_turn(job):
    job = job(heirs=("b/1", "a/1"))
    _, token = job.node.get_state()
    assert job.mover.served is None
    assert job.node.wait_for_state(token, LONG)
    assert job.takes_over() == b"first"


def test_heir_learns_of_the_offer_from_a_refused_write(job):
    job = job()
    state, token, written = job.node.set_state(b"mine", job.before[1])
    assert (state, written) == (b"first", False)
    assert job.node.wait_for_state(token, LONG)
    assert job.takes_over() == b"first"


def test_heir_takes_over_before_there_is_a_state(job):
    job = job(state=None)
    assert job.takes_over() is None
    assert job.node.set_state(b"first")[2]
    assert job.node.get_state()[0] == b"first"


def test_unaccepted_offer_does_not_block_the_first_state(job):
    job = job(heirs=("b/1",), state=None)
    assert job.node.get_state() is None
    assert not job.node.wait_for_state(None, 0.01)
    assert job.node.set_state(b"first")[2]
    assert job.others.newest(job.old.store)[0] == b"first"


def test_offer_names_at_most_64_heirs(job):
    job = job(heirs=("b/1",))
    listed = " ".join(f"b/{number}" for number in range(100))
    job.old.store.set(KEYS.state(3), f"(offer){listed}\n0123abcd:later")
    assert job.node.get_state()[0] == b"later"
    job.others.newest(job.old.store)
    assert len(job.others.heirs) == 64


@pytest.mark.parametrize("states", [0, 1])
def test_pointer_replaces_only_another_pointer(states):
    """A forward after a state stays: the nodes of that store have moved elsewhere themselves."""
    endpoint = Endpoint()
    endpoint.may.set()
    store = endpoint.connection.store
    store.set(Keys("job").id, KEYS.epoch)
    others = Versions(KEYS, HmacSeal("job"))
    for number in range(states):
        others.write(store, b"state", number)
    assert others.forward(store, "elsewhere:1")
    pointer = Pointer(endpoint, "job", HmacSeal("job"), "there:1")
    assert endpoint.connection.released.wait(LONG)
    pointer.close()
    with pytest.raises(Forwarded, match="elsewhere:1" if states else "there:1"):
        others.newest(store)

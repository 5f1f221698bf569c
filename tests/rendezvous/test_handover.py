"""How nodes take a store over, in which order, and the forwards that lead to it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from store_place import KEYS, Place

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.rendezvous.handover import Pointer, turn
from elastic_core.rendezvous.over_store import OverStore
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.store_connection import FactoryConnector, StoreConnection
from elastic_core.rendezvous.versions import Forwarded, Keys, Versions

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


class Mover:
    """Can serve a store here, and goes where it is told."""

    listed = True

    def __init__(self):
        self.place, self.served, self.followed = Place(), None, ""

    def serve(self):
        self.served = True
        return "here:1", StoreConnection(self.place.client(), "here")

    def serve_no_more(self):
        self.served = False

    def moved(self, where):
        self.followed = where

    def leads_to(self, where):
        return where == self.followed

    def at_the_endpoint(self):
        return iter(())


class Job:
    """A node in a store whose host has offered it to that node."""

    def __init__(self, heirs=("a/1",)):
        self.old, self.mover = Place().begin(), Mover()
        self.others = Versions(KEYS, HmacSeal("job"))
        self.others.write(self.old.store, b"first", 0)
        self.node = OverStore(FactoryConnector(self._client, "a store"), "job", mover=self.mover)
        self.node.announce("a/1", b"entry")
        assert self.node.get_state()[0] == b"first"
        assert self.others.offer(self.old.store, heirs)

    def _client(self):
        return (self.mover.place if self.mover.followed == "here:1" else self.old).client()

    def write(self, state):
        assert self.others.write(self.old.store, state, self.others.number)[2]


@pytest.fixture
def job():
    made = []

    def make(**options):
        made.append(Job(**options))
        return made[-1]

    yield make
    for one in made:
        one.node.close()


def test_an_heir_copies_what_was_written_after_it_has_copied_the_state(job):
    job = job()
    job.old.before("compare_set", KEYS.state(3), lambda: job.write(b"late"))
    state, token = job.node.get_state()
    assert (state, job.mover.served, job.mover.followed) == (b"late", True, "here:1")
    assert token.epoch != KEYS.epoch
    with pytest.raises(Forwarded, match="here:1"):
        job.others.newest(job.old.store)


def test_an_heir_replaces_what_a_newcomer_has_written_into_the_new_store_meanwhile(job):
    job = job()
    newcomer = job.mover.place.backend()
    newcomer.announce("n/1", b"newcomer")

    def write():
        job.write(b"late")
        assert newcomer.set_state(b"newcomer's", newcomer.get_state()[1])[2]

    job.old.before("compare_set", KEYS.state(3), write)
    assert job.node.get_state()[0] == b"late"
    assert newcomer.get_state()[0] == b"late"
    assert sorted(seen.key for seen in newcomer.roster()) == ["a/1", "n/1"]
    newcomer.close()


def test_an_heir_that_is_too_late_ends_its_store_and_follows(job):
    job = job()
    job.mover.place.before("compare_set", Keys("job").id, lambda: job.others.forward(job.old.store, "there:1"))
    job.node.get_state()
    assert (job.mover.served, job.mover.followed) == (False, "there:1")


@pytest.mark.parametrize("heirs", [("b/1",), ("b/1", "a/1")])
def test_the_job_goes_on_while_an_offer_stands(job, heirs):
    job = job(heirs=heirs)
    job.mover.listed = heirs != ("b/1",)
    job.write(b"second")
    state, token = job.node.get_state()
    assert state == b"second"
    assert (token.epoch == KEYS.epoch) == ("a/1" not in heirs)
    assert job.node.set_state(b"third", token)[2]
    assert job.node.get_state()[0] == b"third"


def test_an_offer_needs_a_state(job):
    assert not Versions(KEYS, HmacSeal("job")).offer(Place().begin().store, ["a/1"])

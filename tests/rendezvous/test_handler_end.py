"""Handlers that leave or are shut down leave nothing behind and never hang."""

from __future__ import annotations

import threading
import time

import pytest
from elastic_testing import Background, eventually
from handler_job import LONG, FailingStores, rendezvous_threads

from elastic_core.errors import RendezvousGracefulExitError
from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.driver import Patience

pytestmark = pytest.mark.integration


def test_patience_has_its_default_limits():
    """The tests below set shorter and longer ones."""
    assert Patience() == Patience(answer=5.0, outage=1.0, linger=5.0, closing=10.0, ending=2.0)


def test_shutdown_is_idempotent_and_works_without_start(job):
    one = job()
    handler = one.node("a")
    assert handler.shutdown()
    assert handler.shutdown()
    with pytest.raises(RendezvousGracefulExitError):
        handler.next_rendezvous()
    begun = time.monotonic()
    for call in (handler.num_nodes_waiting, handler.set_closed) * 4:
        with pytest.raises(RendezvousGracefulExitError):
            call()
    assert time.monotonic() - begun < LONG  # none of the calls waits five seconds


def test_shutdown_ends_threads_although_leaving_fails(job):
    before = rendezvous_threads()
    one = job(attempts=3, patience=Patience(answer=LONG))
    handler = one.node("a")
    handler.next_rendezvous()
    one.backends["a"].withdraw = broken
    with pytest.raises(TypeError, match="a plugin's client broke"):
        handler.shutdown()
    assert not handler.shutdown()
    eventually(lambda: rendezvous_threads() <= before)


def broken(key):
    raise TypeError("a plugin's client broke")


def test_shutdown_ends_a_join(job):
    before = rendezvous_threads()
    one = job(2, 2, join=120, patience=Patience(answer=120.0, ending=120.0))
    call = Background(one.node("a").next_rendezvous)
    eventually(lambda: one.memory.entries)
    begun = time.monotonic()
    assert one.handlers["a"].shutdown()
    with pytest.raises(RendezvousGracefulExitError, match="shut down"):
        call.result(LONG)
    assert time.monotonic() - begun < LONG
    assert not one.memory.entries
    eventually(lambda: rendezvous_threads() <= before)


@pytest.mark.parametrize("joined", [False, True])
def test_shutdown_is_bounded_when_the_store_hangs(job, joined):
    """The store hangs for a minute."""
    one = job(1, 1, patience=Patience(answer=0.5, ending=0.5))
    handler = one.node("a")
    if joined:
        handler.next_rendezvous()
    one.backends["a"].hold.clear()
    call = None if joined else Background(handler.next_rendezvous)
    assert joined or one.backends["a"].hung.wait(LONG)  # the handler has no threads that could hang before that
    begun = time.monotonic()
    assert not handler.shutdown()
    assert time.monotonic() - begun < LONG
    if call:
        with pytest.raises(RendezvousGracefulExitError):
            call.result(LONG)


def test_hurried_shutdown_waits_for_no_store(job):
    before = rendezvous_threads()
    one = job(1, 1, patience=Patience(answer=LONG))
    handler = one.node("a")
    handler.next_rendezvous()
    one.backends["a"].hosting = True
    one.backends["a"].hold.clear()
    handler.hurry()
    begun = time.monotonic()
    assert not handler.shutdown()
    assert time.monotonic() - begun < LONG
    one.backends["a"].hold.set()
    eventually(lambda: rendezvous_threads() <= before)


@pytest.fixture
def host(job):
    """Function that creates a job of two nodes that have succeeded; the first one hosts the store."""

    def host(patience):
        one = job(2, 2, patience=patience)
        one.form("ab")
        one.backends["a"].hosting = True
        for name in "ab":
            one.handlers[name].report_success()
        for name in "ab":
            eventually(one.handlers[name].verdict)
        return one

    return host


@pytest.mark.parametrize(("node", "does"), [("b", "shutdown"), ("a", "hurry")])
def test_store_host_waits_for_the_last_node_unless_hurried(host, node, does):
    one = host(Patience(linger=120.0))
    leaving = Background(one.handlers["a"].shutdown)
    assert not leaving.over(0.5)
    getattr(one.handlers[node], does)()
    assert leaving.result()


def test_store_host_does_not_wait_for_dead_nodes(host):
    one = host(Patience(linger=0.5))
    begun = time.monotonic()
    assert one.handlers["a"].shutdown()
    assert 0.5 <= time.monotonic() - begun < LONG


class SlowStores(FailingStores):
    """Blocks a reservation until `go_on` is set."""

    def __init__(self):
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def reserve(self):
        self.asked.set()
        self.go_on.wait(LONG)
        return super().reserve()


@pytest.mark.parametrize("when", ["reserving", "waiting"])
def test_node_that_leaves_while_joining_stays_away(job, when):
    one = job(2, 2)
    stores = SlowStores()
    handler = one.node("a", stores=stores)
    call = Background(handler.next_rendezvous)
    assert stores.asked.wait(LONG)
    if when == "waiting":
        stores.go_on.set()
        eventually(lambda: one.memory.entries)
    assert handler.leave("received SIGTERM", LONG)
    stores.go_on.set()
    with pytest.raises(RendezvousGracefulExitError, match="left the rendezvous while it was joining"):
        call.result()
    assert handler.leave("again", LONG)
    assert not one.memory.entries


def test_leaving_ends_a_join_that_starts_later(job):
    """The agent joins in a separate thread, and may be asked to leave before that thread starts."""
    handler = job().node("a")
    assert handler.leave("received SIGTERM", LONG)
    with pytest.raises(RendezvousGracefulExitError, match="left the rendezvous"):
        handler.next_rendezvous()


def test_shutdown_of_a_member_notifies_its_peers(job):
    one = job(1, 2, last_call=LONG)
    one.form("ab")
    assert one.handlers["b"].shutdown()
    assert one.state.end.reason == "b left: it was shut down"
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.RESTART
    assert not one.state.closed


def test_shutdown_in_an_outage_is_bounded(job):
    one = job(1, 1, patience=Patience(answer=120.0, outage=0.5))
    one.form("a")
    one.backends["a"].reachable = False
    eventually(lambda: "made the store unreachable" in one.handlers["a"].progress())
    begun = time.monotonic()
    assert not one.handlers["a"].shutdown()
    assert time.monotonic() - begun < LONG

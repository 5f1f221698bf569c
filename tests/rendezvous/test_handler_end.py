"""Handlers that leave or are shut down: nothing stays behind, and nothing hangs."""

from __future__ import annotations

import threading
import time

import pytest
from handler_job import LONG, FailingStores, rendezvous_threads

from elastic_core.errors import RendezvousGracefulExitError
from elastic_core.interfaces.handler import Outcome
from elastic_core.testing import Background, eventually


def test_shutdown_before_the_start_and_twice(job):
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
    assert time.monotonic() - begun < LONG  # none of them waits its five seconds


def test_shutdown_lets_a_join_come_back(job, in_time):
    before = rendezvous_threads()

    def joining():
        one = job(2, 2, join=120)
        call = Background(one.node("a").next_rendezvous)
        eventually(lambda: one.memory.entries)
        return one, call

    def shut_down():
        one, call = jobs.pop()
        assert one.handlers["a"].shutdown()
        with pytest.raises(RendezvousGracefulExitError, match="shut down"):
            call.result(LONG)
        assert not one.memory.entries

    jobs = [joining() for _ in range(5)]
    assert in_time(shut_down, 2.0)
    for one, _ in jobs:
        one.end()
    eventually(lambda: rendezvous_threads() <= before)


@pytest.mark.parametrize("joined", [False, True])
def test_shutdown_is_bounded_when_the_store_hangs(job, joined, in_time):
    def shut_down():
        one = job(1, 1)
        handler = one.node("a")
        if joined:
            handler.next_rendezvous()
        one.backends["a"].hold.clear()
        call = None if joined else Background(handler.next_rendezvous)
        assert joined or one.backends["a"].hung.wait(LONG)  # before that it has no threads that could hang
        begun = time.monotonic()
        assert not handler.shutdown()
        assert time.monotonic() - begun < LONG  # the store hangs for a minute
        if call:
            with pytest.raises(RendezvousGracefulExitError):
                call.result(LONG)

    assert in_time(shut_down, 9.0, tries=3)


def test_shutdown_while_a_round_runs_closes_nothing(job):
    one = job(1, 2, last_call=LONG)
    one.form("ab")
    assert one.handlers["b"].shutdown()
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.RESTART
    assert not one.state.closed


def test_the_host_of_the_store_leaves_last(job):
    one = job(2, 2)
    one.form("ab")
    one.backends["a"].hosting = True
    for name in "ab":
        one.handlers[name].report_success()
    for name in "ab":
        eventually(one.handlers[name].verdict)
    begun = time.monotonic()
    host = Background(one.handlers["a"].shutdown)
    eventually(lambda: time.monotonic() - begun > 0.5)
    assert host.running or time.monotonic() - begun > 5  # seconds that it waits for others at most
    one.handlers["b"].shutdown()
    host.result()


def test_the_host_of_the_store_goes_with_the_last_of_the_others(job, in_time):
    def end():
        one = job(2, 2)
        one.form("ab")
        one.backends["a"].hosting = True
        for name in "ab":
            one.handlers[name].report_success()
        for name in "ab":
            eventually(one.handlers[name].verdict)
        host = Background(one.handlers["a"].shutdown)
        one.handlers["b"].shutdown()
        host.result()

    assert in_time(end, 4.5)  # and not after the five seconds that it would wait for the dead


class SlowStores(FailingStores):
    """Takes its time with a reservation."""

    def __init__(self):
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def reserve(self):
        self.asked.set()
        self.go_on.wait(LONG)
        return super().reserve()


@pytest.mark.parametrize("when", ["reserving", "waiting"])
def test_who_leaves_while_it_joins_does_not_announce_itself_again(job, when):
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


def test_leaving_is_for_good_also_for_a_join_that_begins_at_the_same_time(job):
    """The agent joins in a thread of its own, and may be asked to leave before that has begun."""
    handler = job().node("a")
    assert handler.leave("received SIGTERM", LONG)
    with pytest.raises(RendezvousGracefulExitError, match="left the rendezvous"):
        handler.next_rendezvous()


def test_shutdown_after_success_leaves_the_others_at_work(job):
    """As an agent that waits for nobody does."""
    one = job(2, 2)
    one.form("ab")
    key = one.key("a")
    one.handlers["a"].report_success()
    assert one.handlers["a"].shutdown()
    assert (one.state.open, one.state.done) == (True, (key,))
    one.handlers["b"].report_success()
    assert eventually(one.handlers["b"].verdict).succeeded


def test_shutdown_of_a_member_is_told_at_once(job):
    one = job(1, 2, last_call=LONG)
    one.form("ab")
    assert one.handlers["b"].shutdown()
    assert one.state.end.reason == "b left: it was shut down"
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.RESTART


def test_shutdown_in_an_outage_does_not_wait_for_long(job, in_time):
    def out_of_reach():
        one = job(1, 1)
        one.form("a")
        one.backends["a"].reachable = False
        eventually(lambda: "took it away" in one.handlers["a"].progress())
        return one.handlers["a"]

    def shut_down():
        assert not handlers.pop().shutdown()

    handlers = [out_of_reach() for _ in range(5)]
    assert in_time(shut_down, 4.5)  # and not after the five seconds for a store that answers


def test_a_hundred_cycles_leave_nothing_behind(job):
    before = rendezvous_threads()
    one = job(1, 1)
    for i in range(100):
        one.memory.state = None
        one.node(f"n{i}").next_rendezvous()
        assert one.handlers[f"n{i}"].shutdown()
    assert not one.memory.entries
    eventually(lambda: rendezvous_threads() <= before)

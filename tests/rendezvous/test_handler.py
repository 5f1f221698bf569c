"""Handlers with their threads, over a memory that can be taken away, and over a real TCPStore."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta

import pytest

from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.errors import (
    ProcessFailure,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.interfaces.handler import Outcome, RendezvousStoreInfo
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous import DynamicRendezvousHandler, RendezvousTimeout, RoundStores
from elastic_core.rendezvous.codec import decoded_state, encoded_state
from elastic_core.rendezvous.state import State, drained, refused
from elastic_core.testing import Background, MemoryBackend, SharedMemory, eventually

LONG = 20.0
SHORT = 15  # beats of 0.2 s that a node which is about to fall silent may miss


class HangingBackend(MemoryBackend):
    """Calls hang while `hold` is cleared. `hosting`: what `hosts_store` says."""

    def __init__(self, memory):
        super().__init__(memory)
        self.hold = threading.Event()
        self.hold.set()
        self.hosting = False

    @property
    def hosts_store(self):
        return self.hosting

    def get_state(self):
        self.hold.wait(60)
        return super().get_state()

    def beat(self, key, leading, look):
        self.hold.wait(60)
        return super().beat(key, leading, look)

    def withdraw(self, key):
        self.hold.wait(60)
        super().withdraw(key)


class Job:
    """The nodes of a job in one process, by name. Nobody is called gone who is only slow, unless by few `attempts`."""

    def __init__(self, min_nodes=1, max_nodes=2, interval=0.2, attempts=150, **timeouts):
        self.memory = SharedMemory()
        self.store = MemoryStore(timedelta(seconds=LONG))
        self.bounds = (min_nodes, max_nodes)
        self.beats = (interval, attempts)
        self.timeout = RendezvousTimeout(**{"join": LONG, "last_call": 0.3, **timeouts})
        self.handlers = {}
        self.backends = {}

    def node(self, name, max_restarts=3, stores=None):
        backend = HangingBackend(self.memory)
        handler = DynamicRendezvousHandler.from_backend(
            "job",
            self.store,
            backend,
            *self.bounds,
            "127.0.0.1",
            self.timeout,
            *self.beats,
            node=Node(name, host=name, max_restarts=max_restarts),
            stores=stores,
        )
        self.handlers[name], self.backends[name] = handler, backend
        return handler

    def form(self, names):
        """The round in which all of these are, by name."""
        for name in names:
            if name not in self.handlers:
                self.node(name)
        calls = {name: Background(self.handlers[name].next_rendezvous) for name in names}
        return {name: call.result() for name, call in calls.items()}

    @property
    def state(self):
        return State() if self.memory.state is None else decoded_state(self.memory.state[0])

    def write(self, change):
        """Somebody from outside changes the state."""
        backend = MemoryBackend(self.memory)
        found = backend.get_state()
        state, token = found or (encoded_state(State()), None)
        assert backend.set_state(encoded_state(change(decoded_state(state))), token)[2]

    def key(self, name):
        return next(key for key in self.memory.entries if key.startswith(f"{name}/"))

    def end(self):
        for backend in self.backends.values():
            backend.hold.set()
            backend.reachable = True
            backend.hosting = False
        for call in [Background(handler.shutdown) for handler in self.handlers.values()]:
            call.result()


@pytest.fixture
def job():
    made = []

    def make(*args, **kwargs):
        made.append(Job(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.end()


def failure(rank=0, message="ValueError: no", **changes):
    return {rank: ProcessFailure(0, 7, 1, message=message, global_rank=rank, **changes)}


# -- joining


def test_members_agree(job):
    one = job(3, 3)
    infos = one.form("abc")
    assert sorted(info.rank for info in infos.values()) == [0, 1, 2]
    assert {info.world_size for info in infos.values()} == {3}
    assert len({info.bootstrap_store_info for info in infos.values()}) == 1
    assert len({info.formed for info in infos.values()}) == 1
    infos["a"].store.set("key", "value")
    assert infos["b"].store.get("key") == b"value"


def test_the_store_of_a_round_is_new(job):
    one = job(1, 1)
    first = one.form("a")["a"]
    first.store.set("key", "value")
    one.handlers["a"].report_failure(failure())
    second = one.form("a")["a"]
    assert second.formed.number == 2
    assert not second.store.check(["key"])
    assert second.formed.restart_count == 1


def test_torch_users_give_positions_and_timedeltas():
    backend, seconds = MemoryBackend(SharedMemory()), timedelta(seconds=2)
    timeout = RendezvousTimeout(seconds, seconds, seconds, seconds)
    handler = DynamicRendezvousHandler.from_backend(
        "job", MemoryStore(), backend, 1, 2, "127.0.0.1", timeout, timedelta(seconds=3), 4
    )
    settings = handler.settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("job", 1, 2)
    assert (settings.timeout.join, settings.timeout.last_call) == (2.0, 2.0)
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (3.0, 4)
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("memory", "job", False)
    assert handler.shutdown()


def test_too_few_are_told_who_is_there(job):
    one = job(2, 4, join=1.5)
    handler = one.node("a")
    assert not handler.is_closed()  # the store has answered
    with pytest.raises(
        RendezvousTimeoutError, match=r"2 to 4 nodes .* 1.5 s .*found: 1 of 2 nodes joined.*join_timeout"
    ):
        handler.next_rendezvous()


def test_after_a_timeout_one_may_try_again(job):
    one = job(2, 2, join=0.3)
    handler = one.node("a")
    assert not handler.is_closed()  # the store has answered
    for _ in range(3):
        with pytest.raises(RendezvousTimeoutError):
            handler.next_rendezvous()
    eventually(lambda: not one.memory.entries)
    one.timeout.join = LONG
    assert len(one.form("ab")) == 2


def test_waiting_for_a_running_round_is_no_timeout(job):
    one = job(1, 1)
    one.form("a")
    one.timeout.join = 0.4
    assert not one.node("b").is_closed()  # the store has answered
    spare = Background(one.handlers["b"].next_rendezvous)
    eventually(lambda: "spare" in one.handlers["b"].progress())
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 1.0)
    assert spare.running
    one.timeout.join = LONG
    one.handlers["a"].leave("test", LONG)
    assert spare.result().rank == 0


def test_a_newcomer_ends_the_round_and_is_in_the_next(job):
    one = job(1, 2)
    one.form("a")
    news = threading.Event()
    one.handlers["a"].subscribe(news.set)
    late = Background(one.node("b").next_rendezvous)
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.failed) == (Outcome.RESTART, False)
    assert news.is_set()
    assert one.form("a")["a"].world_size == 2
    assert late.result().rank == 1


def test_who_wants_a_new_round_without_a_report_ends_the_one_that_runs(job):
    """As agents written for torch's handlers do."""
    one = job(2, 2)
    infos = one.form("ab")
    again = Background(one.handlers["a"].next_rendezvous)
    verdict = eventually(one.handlers["b"].verdict)
    assert (verdict.outcome, verdict.reason, verdict.failed) == (Outcome.RESTART, "a wants a new round", False)
    assert one.form("b")["b"].formed == again.result().formed
    assert one.handlers["a"].verdict() is None
    assert (again.result().formed.number, again.result().rank) == (2, infos["a"].rank)
    assert again.result().formed.restart_count == 0


def test_a_member_that_missed_its_round_takes_part_in_the_next(job):
    """It is seated while it does not look, and the round is over before it does."""
    one = job(2, 2)
    one.node("a")
    one.node("b")
    slow = Background(one.handlers["a"].next_rendezvous)
    eventually(lambda: one.memory.entries)
    one.backends["a"].hold.clear()
    fast = Background(one.handlers["b"].next_rendezvous)
    eventually(lambda: one.state.round or len(one.memory.entries) == 2)
    one.backends["a"].hold.set()
    fast.result()
    slow.result()
    one.handlers["b"].report_failure(failure(1))
    infos = one.form("ab")
    assert {info.formed.number for info in infos.values()} == {one.state.round}


# -- not joining


def test_closed_before_it_came(job):
    one = job()
    one.node("a").set_closed()
    with pytest.raises(RendezvousClosedError, match=r"closed by a: it was closed on request.*another --rdzv-id"):
        one.node("b").next_rendezvous()


def test_closed_while_it_waits(job):
    one = job(2, 2)
    call = Background(one.node("a").next_rendezvous)
    eventually(lambda: one.memory.entries)
    one.node("b").close("the budget is spent", succeeded=False)
    with pytest.raises(RendezvousClosedError, match="the budget is spent"):
        call.result()
    eventually(lambda: not one.memory.entries)


def test_a_spare_is_not_needed_when_the_job_ends_well(job):
    one = job(1, 1)
    one.form("a")
    spare = Background(one.node("b").next_rendezvous)
    eventually(lambda: len(one.memory.entries) == 2)
    one.handlers["a"].report_success()
    with pytest.raises(RendezvousGracefulExitError, match="was not needed"):
        spare.result()
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.succeeded) == (Outcome.CLOSED, True)


def test_drained_while_it_waits_and_while_it_runs(job):
    one = job(1, 1)
    one.form("a")
    spare = Background(one.node("b").next_rendezvous)
    eventually(lambda: len(one.memory.entries) == 2)
    one.write(lambda state: drained(drained(state, one.key("b"), "b"), one.key("a"), "a"))
    with pytest.raises(RendezvousGracefulExitError, match="drain"):
        spare.result()
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.DRAINED


def test_refused(job):
    one = job(2, 2)
    call = Background(one.node("a").next_rendezvous)
    eventually(lambda: one.memory.entries)
    one.write(lambda state: refused(state, [(one.key("a"), "the name is taken")]))
    with pytest.raises(RendezvousStateError, match=r"the name is taken; .*--node-id"):
        call.result()


def test_a_state_of_others_is_an_error_for_who_joins(job):
    one = job()
    one.memory.state = (b'{"version": 99}', 1)
    with pytest.raises(RendezvousStateError, match="99"):
        one.node("a").next_rendezvous()


def test_an_unreachable_store_is_an_error_at_the_deadline(job, in_time):
    one = job(join=0.4)
    handler = one.node("a")
    one.backends["a"].reachable = False

    def join():
        begun = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match="took it away"):
            handler.next_rendezvous()
        assert time.monotonic() - begun > 0.3

    assert in_time(join, 3.0)


def test_a_store_that_does_not_answer_is_an_error_at_the_deadline(job, in_time):
    one = job(join=0.4)
    handler = one.node("a")
    one.backends["a"].hold.clear()

    def join():
        with pytest.raises(RendezvousConnectionError, match=r"within 0.4 s"):
            handler.next_rendezvous()

    assert in_time(join, 3.0)


def test_an_outage_while_gathering_passes(job):
    one = job(2, 2)
    call = Background(one.node("a").next_rendezvous)
    eventually(lambda: one.memory.entries)
    one.backends["a"].reachable = False
    eventually(lambda: "took it away" in one.handlers["a"].progress())
    one.memory.entries.clear()  # the store comes back empty
    one.backends["a"].reachable = True
    eventually(lambda: one.memory.entries)
    one.node("b").next_rendezvous()
    assert call.result().world_size == 2


class FailingStores(RoundStores):
    """Cannot open the first store."""

    hosted_by_agent = True

    def __init__(self):
        self.reserved = 0
        self.released = 0

    def reserve(self):
        self.reserved += 1
        return RendezvousStoreInfo("127.0.0.1", 1000 + self.reserved)

    def open(self, number, host, is_host):
        if self.reserved == 1:
            raise OSError("no store today")
        return MemoryStore()

    def release(self):
        self.released += 1


def test_a_store_that_cannot_be_opened_leaves_no_member_behind(job):
    one = job(1, 1)
    handler = one.node("a", stores=FailingStores())
    with pytest.raises(OSError, match="no store today"):
        handler.next_rendezvous()
    eventually(lambda: not one.memory.entries)
    info = Background(handler.next_rendezvous).result()
    assert info.bootstrap_store_info.master_port == 1002
    assert info.formed.number == 2


# -- while a round runs


def test_a_lost_member_ends_the_round(job):
    one = job(1, 2, attempts=SHORT, last_call=LONG)
    one.form("ab")
    one.backends["b"].hold.clear()
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.failed) == (Outcome.RESTART, False)
    assert verdict.reason.startswith("lost b:")
    assert one.form("a")["a"].world_size == 1


def test_a_lost_leader_ends_the_round(job):
    one = job(1, 2, attempts=SHORT, last_call=LONG)
    infos = one.form("ab")
    first, second = sorted("ab", key=lambda name: infos[name].rank)
    one.backends[first].hold.clear()
    assert eventually(one.handlers[second].verdict).reason.startswith(f"lost {first}:")


def test_a_failure_is_everybodys_and_counts_once(job):
    one = job(2, 2)
    one.form("ab")
    one.handlers["a"].report_failure(failure(0))
    one.handlers["b"].report_failure(failure(1, "connection reset"))
    one.handlers["a"].report_failure(failure(0, "ValueError: all of it"))
    for name in "ab":
        verdict = eventually(one.handlers[name].verdict)
        assert (verdict.outcome, verdict.failed) == (Outcome.RESTART, True)
    eventually(lambda: "all of it" in one.handlers["b"].verdict().failures[0].message)
    assert {info.formed.restart_count for info in one.form("ab").values()} == {1}
    assert one.handlers["a"].verdict() is None


def test_the_budget_is_the_jobs(job):
    one = job(1, 1)
    handler = one.node("a", max_restarts=1)
    handler.next_rendezvous()
    handler.report_failure(failure())
    assert handler.next_rendezvous().formed.restart_count == 1
    handler.report_failure(failure())
    verdict = eventually(handler.verdict)
    assert (verdict.outcome, verdict.succeeded, verdict.by) == (Outcome.CLOSED, False, "a")
    with pytest.raises(RendezvousClosedError, match="all 1 restarts") as caught:
        handler.next_rendezvous()
    assert "another --rdzv-id" not in str(caught.value)
    assert list(caught.value.failures) == [0]


def test_success_of_all_closes_the_job(job):
    one = job(2, 2)
    one.form("ab")
    one.handlers["a"].report_success()
    eventually(lambda: one.handlers["a"].progress() == "1 of 2 nodes are done, still at work: b")
    assert one.handlers["a"].verdict() is None
    one.handlers["b"].report_success()
    for name in "ab":
        assert eventually(one.handlers[name].verdict).succeeded
        assert one.handlers[name].is_closed()


def test_who_left_after_its_success_does_not_end_the_round(job):
    one = job(2, 2)
    one.form("ab")
    one.handlers["a"].report_success()
    assert one.handlers["a"].leave("done", LONG)
    assert one.state.open
    one.handlers["b"].report_success()
    assert eventually(one.handlers["b"].verdict).succeeded


def test_who_leaves_tells_the_others(job):
    one = job(1, 2, last_call=LONG)
    one.form("ab")
    assert one.handlers["b"].leave("received SIGTERM", LONG)
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.reason, verdict.failed) == (Outcome.RESTART, "b left: received SIGTERM", False)
    assert not one.handlers["a"].is_closed()


def test_leaving_does_not_wait_for_a_store_that_hangs(job, in_time):
    def with_a_store_that_hangs():
        one = job(1, 1)
        handler = one.node("a")
        assert handler.leave("never started", 5.0)
        handler.next_rendezvous()
        one.backends["a"].hold.clear()
        return handler

    def leave():
        assert not handlers.pop().leave("received SIGTERM", 0.3)

    handlers = [with_a_store_that_hangs() for _ in range(5)]
    assert in_time(leave, 1.5)


def test_nodes_that_wait_are_counted_as_torch_counts_them(job):
    one = job(1, 1)
    one.form("a")
    assert one.handlers["a"].num_nodes_waiting() == 0
    one.bounds = (1, 2)
    other = one.node("b")
    assert other.num_nodes_waiting() == 0
    one.backends["b"].reachable = False
    with pytest.raises(RendezvousConnectionError):
        other.num_nodes_waiting()


def test_closing_is_known_to_all_when_it_returns(job):
    one = job(2, 2)
    one.form("ab")
    assert not one.handlers["b"].is_closed()
    one.handlers["a"].set_closed()
    assert one.handlers["b"].is_closed()
    one.backends["b"].reachable = False
    assert one.handlers["b"].is_closed()  # for good
    fresh = one.node("c")
    assert fresh.is_closed()


def test_closing_through_an_outage_is_an_error_and_happens_all_the_same(job):
    one = job(1, 1)
    one.form("a")
    one.backends["a"].reachable = False
    for call in [Background(one.handlers["a"].set_closed), Background(one.handlers["a"].is_closed)]:
        with pytest.raises(RendezvousConnectionError):
            call.result()
    one.backends["a"].reachable = True
    eventually(lambda: one.state.closed)


# -- faults while a round runs


def fenced(job, how):
    """The verdict on an outage that is long, after one that was short; and how many seconds it took."""
    one = job(1, 1, attempts=5)
    one.form("a")
    handler, backend = one.handlers["a"], one.backends["a"]

    def cut(away):
        backend.reachable = not away or how == "hangs"
        backend.hold.clear() if away and how == "hangs" else backend.hold.set()

    begun = time.monotonic()
    cut(True)
    eventually(lambda: time.monotonic() - begun > 0.5)
    assert handler.verdict() is None
    cut(False)
    eventually(lambda: backend.calls["beat"] and handler.verdict() is None and handler.ask_again())
    count = backend.calls["beat"]
    eventually(lambda: backend.calls["beat"] > count + 1)
    begun = time.monotonic()
    cut(True)
    while (verdict := handler.verdict()) is None:
        assert time.monotonic() - begun < LONG
        pause = max(handler.ask_again() - time.monotonic(), 0.0)
        threading.Event().wait(min(pause, 1.0) + 0.001)
    return verdict, time.monotonic() - begun


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_long_outage_fences_and_a_short_one_does_not(job, how):
    """The window is 1 s, an interval of 0.2 s of which may have passed before the outage."""

    def soon():
        verdict, seconds = fenced(job, how)
        assert verdict.outcome is Outcome.FENCED
        told = re.search(r"out of reach for (\d+\.\d) s; after 1 s without a beat", verdict.reason)
        assert told and float(told.group(1)) >= 0.8
        assert seconds > 0.7
        assert ("does not answer at all" if how == "hangs" else "took it away") in verdict.reason
        return float(told.group(1)) < 2.5 and seconds < 2.5

    assert any(soon() for _ in range(3))  # a machine that stalls makes some late, a fault all


def test_an_unreadable_state_leaves_healthy_workers_alone(job):
    one = job(1, 1)
    one.form("a")
    with one.memory.changed:
        one.memory.state = (b"not ours", one.memory.writes + 1)
        one.memory.changed.notify_all()
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 1.5)
    assert one.handlers["a"].verdict() is None
    with pytest.raises(RendezvousStateError):
        one.handlers["a"].next_rendezvous()


def test_a_listener_that_raises_stops_nothing(job, capsys):
    one = job(1, 1)
    handler = one.node("a")
    told = []
    handler.subscribe(lambda: 1 // 0)
    handler.subscribe(lambda: told.append(1))
    handler.next_rendezvous()
    one.backends["a"].reachable = False
    eventually(lambda: "took it away" in handler.progress())
    one.backends["a"].reachable = True
    count = one.backends["a"].calls["beat"]
    eventually(lambda: one.backends["a"].calls["beat"] > count + 2)
    assert told
    assert "a listener raised ZeroDivisionError" in capsys.readouterr().err


# -- the end


def rendezvous_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("rendezvous-")]


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
    before = len(rendezvous_threads())

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
    eventually(lambda: len(rendezvous_threads()) == before)


@pytest.mark.parametrize("joined", [False, True])
def test_shutdown_is_bounded_when_the_store_hangs(job, joined, in_time):
    def shut_down():
        one = job(1, 1)
        handler = one.node("a")
        if joined:
            handler.next_rendezvous()
        one.backends["a"].hold.clear()
        call = None if joined else Background(handler.next_rendezvous)
        eventually(lambda: call is None or call.running)
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
    host = Background(one.handlers["a"].shutdown)
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 0.5)
    assert host.running
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
    before = len(rendezvous_threads())
    one = job(1, 1)
    for i in range(100):
        one.memory.state = None
        one.node(f"n{i}").next_rendezvous()
        assert one.handlers[f"n{i}"].shutdown()
    assert not one.memory.entries
    eventually(lambda: len(rendezvous_threads()) == before)


# -- over a real store


@pytest.mark.torch
def test_four_nodes_over_a_tcp_store():
    from elastic_c10d import C10dRendezvousBackend
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    handlers = []
    for i in range(4):
        client = TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
        timeout = RendezvousTimeout(join=LONG, last_call=LONG)
        backend = C10dRendezvousBackend(client, "job")
        handlers.append(
            DynamicRendezvousHandler.from_backend(
                "job", client, backend, 1, 4, "127.0.0.1", timeout, 0.2, 150, node=Node(f"n{i}", host=f"n{i}")
            )
        )
    try:
        infos = [call.result() for call in [Background(handler.next_rendezvous) for handler in handlers]]
        assert sorted(info.rank for info in infos) == [0, 1, 2, 3]
        infos[0].store.set("key", "value")
        assert infos[3].store.get("key") == b"value"
        assert handlers[3].leave("test", LONG)
        assert handlers[3].shutdown()
        for handler in handlers[:3]:
            assert eventually(handler.verdict).outcome is Outcome.RESTART
        infos = [call.result() for call in [Background(handler.next_rendezvous) for handler in handlers[:3]]]
        assert {info.world_size for info in infos} == {3}
        for handler in handlers[:3]:
            handler.report_success()
        assert all(eventually(handler.verdict).succeeded for handler in handlers[:3])
    finally:
        for call in [Background(handler.shutdown) for handler in handlers]:
            call.result()

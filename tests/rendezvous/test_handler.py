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
from elastic_core.testing import MemoryBackend, SharedMemory

LONG = 20.0


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


class Background:
    """A call in a thread of its own."""

    def __init__(self, function, *args):
        self.value = None
        self.error = None
        self._thread = threading.Thread(target=self._run, args=(function, *args), daemon=True)
        self._thread.start()

    def _run(self, function, *args):
        try:
            self.value = function(*args)
        except Exception as error:  # noqa: BLE001 - it is raised again by `result`
            self.error = error

    def result(self, timeout=LONG):
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"still running after {timeout} s"
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def running(self):
        return self._thread.is_alive()


class Job:
    """The nodes of a job in one process, by name."""

    def __init__(self, min_nodes=1, max_nodes=2, interval=0.2, attempts=5, **timeouts):
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


@pytest.fixture
def eventually():
    def wait(condition, timeout=LONG):
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            assert time.monotonic() < deadline, f"did not come true within {timeout} s"
            time.sleep(0.005)
        return found

    return wait


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
    one = job(2, 4, join=0.5)
    with pytest.raises(
        RendezvousTimeoutError, match=r"2 to 4 nodes .* 0.5 s .*found: 1 of 2 nodes joined.*join_timeout"
    ):
        one.node("a").next_rendezvous()


def test_after_a_timeout_one_may_try_again(job, eventually):
    one = job(2, 2, join=0.3)
    handler = one.node("a")
    for _ in range(3):
        with pytest.raises(RendezvousTimeoutError):
            handler.next_rendezvous()
    eventually(lambda: not one.memory.entries)
    one.timeout.join = LONG
    assert len(one.form("ab")) == 2


def test_waiting_for_a_running_round_is_no_timeout(job, eventually):
    one = job(1, 1, join=0.4)
    one.form("a")
    spare = Background(one.node("b").next_rendezvous)
    eventually(lambda: "spare" in one.handlers["b"].progress())
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 1.0)
    assert spare.running
    one.handlers["a"].leave("test", 5.0)
    assert spare.result().rank == 0


def test_a_newcomer_ends_the_round_and_is_in_the_next(job, eventually):
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


def test_who_wants_a_new_round_without_a_report_ends_the_one_that_runs(job, eventually):
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


def test_a_member_that_missed_its_round_takes_part_in_the_next(job, eventually):
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


def test_closed_while_it_waits(job, eventually):
    one = job(2, 2)
    call = Background(one.node("a").next_rendezvous)
    eventually(lambda: one.memory.entries)
    one.node("b").close("the budget is spent", succeeded=False)
    with pytest.raises(RendezvousClosedError, match="the budget is spent"):
        call.result()
    eventually(lambda: not one.memory.entries)


def test_a_spare_is_not_needed_when_the_job_ends_well(job, eventually):
    one = job(1, 1)
    one.form("a")
    spare = Background(one.node("b").next_rendezvous)
    eventually(lambda: len(one.memory.entries) == 2)
    one.handlers["a"].report_success()
    with pytest.raises(RendezvousGracefulExitError, match="was not needed"):
        spare.result()
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.succeeded) == (Outcome.CLOSED, True)


def test_drained_while_it_waits_and_while_it_runs(job, eventually):
    one = job(1, 1)
    one.form("a")
    spare = Background(one.node("b").next_rendezvous)
    eventually(lambda: len(one.memory.entries) == 2)
    one.write(lambda state: drained(drained(state, one.key("b"), "b"), one.key("a"), "a"))
    with pytest.raises(RendezvousGracefulExitError, match="drain"):
        spare.result()
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.DRAINED


def test_refused(job, eventually):
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


def test_an_unreachable_store_is_an_error_at_the_deadline(job):
    one = job(join=0.4)
    handler = one.node("a")
    one.backends["a"].reachable = False
    begun = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="took it away"):
        handler.next_rendezvous()
    assert 0.3 < time.monotonic() - begun < 3.0


def test_a_store_that_does_not_answer_is_an_error_at_the_deadline(job):
    one = job(join=0.4)
    handler = one.node("a")
    one.backends["a"].hold.clear()
    with pytest.raises(RendezvousConnectionError, match=r"within 0.4 s"):
        handler.next_rendezvous()


def test_an_outage_while_gathering_passes(job, eventually):
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


def test_a_store_that_cannot_be_opened_leaves_no_member_behind(job, eventually):
    one = job(1, 1)
    handler = one.node("a", stores=FailingStores())
    with pytest.raises(OSError, match="no store today"):
        handler.next_rendezvous()
    eventually(lambda: not one.memory.entries)
    info = Background(handler.next_rendezvous).result()
    assert info.bootstrap_store_info.master_port == 1002
    assert info.formed.number == 2


# -- while a round runs


def test_a_lost_member_ends_the_round(job, eventually):
    one = job(1, 2)
    one.form("ab")
    one.backends["b"].hold.clear()
    begun = time.monotonic()
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.failed) == (Outcome.RESTART, False)
    assert verdict.reason.startswith("lost b:")
    assert time.monotonic() - begun < 4.0
    assert one.form("a")["a"].world_size == 1


def test_a_lost_leader_ends_the_round(job, eventually):
    one = job(1, 2)
    infos = one.form("ab")
    first, second = sorted("ab", key=lambda name: infos[name].rank)
    one.backends[first].hold.clear()
    assert eventually(one.handlers[second].verdict).reason.startswith(f"lost {first}:")


def test_a_failure_is_everybodys_and_counts_once(job, eventually):
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


def test_the_budget_is_the_jobs(job, eventually):
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


def test_success_of_all_closes_the_job(job, eventually):
    one = job(2, 2)
    one.form("ab")
    one.handlers["a"].report_success()
    eventually(lambda: one.handlers["a"].progress() == "1 of 2 nodes are done, still at work: b")
    assert one.handlers["a"].verdict() is None
    one.handlers["b"].report_success()
    for name in "ab":
        assert eventually(one.handlers[name].verdict).succeeded
        assert one.handlers[name].is_closed()


def test_who_left_after_its_success_does_not_end_the_round(job, eventually):
    one = job(2, 2)
    one.form("ab")
    one.handlers["a"].report_success()
    assert one.handlers["a"].leave("done", 5.0)
    assert one.state.open
    one.handlers["b"].report_success()
    assert eventually(one.handlers["b"].verdict).succeeded


def test_who_leaves_tells_the_others(job, eventually):
    one = job(1, 2)
    one.form("ab")
    assert one.handlers["b"].leave("received SIGTERM", 5.0)
    verdict = eventually(one.handlers["a"].verdict)
    assert (verdict.outcome, verdict.reason, verdict.failed) == (Outcome.RESTART, "received SIGTERM", False)
    assert not one.handlers["a"].is_closed()


def test_leaving_does_not_wait_for_a_store_that_hangs(job):
    one = job(1, 1)
    handler = one.node("a")
    assert handler.leave("never started", 5.0)
    handler.next_rendezvous()
    one.backends["a"].hold.clear()
    begun = time.monotonic()
    assert not handler.leave("received SIGTERM", 0.3)
    assert time.monotonic() - begun < 1.5


def test_nodes_that_wait_are_counted_as_torch_counts_them(job, eventually):
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


def test_closing_through_an_outage_is_an_error_and_happens_all_the_same(job, eventually):
    one = job(1, 1)
    one.form("a")
    one.backends["a"].reachable = False
    for call in [Background(one.handlers["a"].set_closed), Background(one.handlers["a"].is_closed)]:
        with pytest.raises(RendezvousConnectionError):
            call.result()
    one.backends["a"].reachable = True
    eventually(lambda: one.state.closed)


# -- faults while a round runs


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_long_outage_fences_and_a_short_one_does_not(job, eventually, how):
    one = job(1, 1)
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
    assert verdict.outcome is Outcome.FENCED
    assert 0.7 < time.monotonic() - begun < 2.5  # the window is 1 s
    assert re.search(r"out of reach for [01]\.\d s; after 1 s without a beat", verdict.reason)
    assert ("does not answer at all" if how == "hangs" else "took it away") in verdict.reason


def test_an_unreadable_state_leaves_healthy_workers_alone(job, eventually):
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


def test_a_listener_that_raises_stops_nothing(job, eventually, capsys):
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
    with pytest.raises(RendezvousGracefulExitError):
        handler.num_nodes_waiting()
    with pytest.raises(RendezvousGracefulExitError):
        handler.set_closed()
    assert time.monotonic() - begun < 1.0


def test_shutdown_lets_a_join_come_back(job, eventually):
    before = len(rendezvous_threads())
    one = job(2, 2)
    handler = one.node("a")
    call = Background(handler.next_rendezvous)
    eventually(lambda: one.memory.entries)
    begun = time.monotonic()
    assert handler.shutdown()
    with pytest.raises(RendezvousGracefulExitError, match="shut down"):
        call.result()
    assert time.monotonic() - begun < 2.0
    assert not one.memory.entries
    eventually(lambda: len(rendezvous_threads()) == before)


@pytest.mark.parametrize("joined", [False, True])
def test_shutdown_is_bounded_when_the_store_hangs(job, eventually, joined):
    one = job(1, 1)
    handler = one.node("a")
    if joined:
        handler.next_rendezvous()
    one.backends["a"].hold.clear()
    call = None if joined else Background(handler.next_rendezvous)
    eventually(lambda: call is None or call.running)
    begun = time.monotonic()
    assert not handler.shutdown()
    assert time.monotonic() - begun < 9.0
    if call:
        with pytest.raises(RendezvousGracefulExitError):
            call.result(1.0)


def test_shutdown_while_a_round_runs_closes_nothing(job, eventually):
    one = job(1, 2)
    one.form("ab")
    assert one.handlers["b"].shutdown()
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.RESTART
    assert not one.state.closed


def test_the_host_of_the_store_leaves_last(job, eventually):
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
    assert time.monotonic() - begun < 2.5  # and not the five seconds it would wait for the dead


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
def test_who_leaves_while_it_joins_does_not_announce_itself_again(job, eventually, when):
    one = job(2, 2)
    stores = SlowStores()
    handler = one.node("a", stores=stores)
    call = Background(handler.next_rendezvous)
    assert stores.asked.wait(LONG)
    if when == "waiting":
        stores.go_on.set()
        eventually(lambda: one.memory.entries)
    assert handler.leave("received SIGTERM", 5.0)
    stores.go_on.set()
    with pytest.raises(RendezvousGracefulExitError, match="left the rendezvous while it was joining"):
        call.result()
    assert handler.leave("again", 5.0)
    assert not one.memory.entries


def test_shutdown_after_success_leaves_the_others_at_work(job, eventually):
    """As an agent that waits for nobody does."""
    one = job(2, 2)
    one.form("ab")
    key = one.key("a")
    one.handlers["a"].report_success()
    assert one.handlers["a"].shutdown()
    assert (one.state.open, one.state.done) == (True, (key,))
    one.handlers["b"].report_success()
    assert eventually(one.handlers["b"].verdict).succeeded


def test_shutdown_of_a_member_is_told_at_once(job, eventually):
    one = job(1, 2)
    one.form("ab")
    assert one.handlers["b"].shutdown()
    assert one.state.end.reason == "b was shut down"
    assert eventually(one.handlers["a"].verdict).outcome is Outcome.RESTART


def test_shutdown_in_an_outage_does_not_wait_for_long(job, eventually):
    one = job(1, 1)
    one.form("a")
    one.backends["a"].reachable = False
    eventually(lambda: "took it away" in one.handlers["a"].progress())
    begun = time.monotonic()
    assert not one.handlers["a"].shutdown()
    assert time.monotonic() - begun < 2.5


def test_a_hundred_cycles_leave_nothing_behind(job, eventually):
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
def test_four_nodes_over_a_tcp_store(eventually):
    from elastic_c10d import C10dRendezvousBackend
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    handlers = []
    for i in range(4):
        client = TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
        timeout = RendezvousTimeout(join=LONG, last_call=0.5)
        backend = C10dRendezvousBackend(client, "job")
        handlers.append(
            DynamicRendezvousHandler.from_backend(
                "job", client, backend, 1, 4, "127.0.0.1", timeout, 0.2, node=Node(f"n{i}", host=f"n{i}")
            )
        )
    try:
        infos = [call.result() for call in [Background(handler.next_rendezvous) for handler in handlers]]
        assert sorted(info.rank for info in infos) == [0, 1, 2, 3]
        infos[0].store.set("key", "value")
        assert infos[3].store.get("key") == b"value"
        assert handlers[3].leave("test", 5.0)
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

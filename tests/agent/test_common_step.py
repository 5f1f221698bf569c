"""The workers of a round save after the same step before they are stopped."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from agent_fakes import FakeWorkers
from elastic_testing import FakeClock
from round_of_two import Ordered

from elastic_core.agent.event_queue import EventQueue
from elastic_core.agent.interface import RunResult, WorkerState
from elastic_core.agent.stopping import CommonStep, GroupStop, agree
from elastic_core.agent.supervise import Observation, RestartBudget, supervise
from elastic_core.builtin import MemoryStore
from elastic_core.clock import SystemClock
from elastic_core.errors import DrainedError, PreemptedError, SignalException
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.node import Notice
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks

PATIENCE = 60.0
TERM, CONT = signal.SIGTERM, signal.SIGCONT


def agreed(*highest, multiple=1):
    """What each node of a round gets, in rank order."""
    store, size = MemoryStore(), len(highest)
    with ThreadPoolExecutor(size) as nodes:
        calls = [
            nodes.submit(agree, store, rank, range(size), step, multiple=multiple, patience=PATIENCE)
            for rank, step in enumerate(highest)
        ]
        return [call.result(PATIENCE) for call in calls]


@pytest.mark.parametrize(
    ("highest", "multiple", "step"),
    [
        ([0], 1, 1),
        ([7], 1, 8),
        ([7], 4, 8),
        ([8], 4, 12),
        ([0], 100, 100),
        ([3, 5], 1, 6),
        ([5, 3], 1, 6),
        ([5, 3, 4], 10, 10),
        ([10, 10], 10, 20),
    ],
)
def test_nodes_agree_on_the_first_step_above_all(highest, multiple, step):
    assert agreed(*highest, multiple=multiple) == [step] * len(highest)


@pytest.mark.parametrize("highest", [(-1, 5), (5, -1), (4, -1, 6), (-1, -1)])
def test_node_without_steps_prevents_a_common_step_at_once(highest):
    assert agreed(*highest) == [None] * len(highest)


def test_finished_nodes_take_no_part():
    store, ranks = MemoryStore(), (1, 3)
    with ThreadPoolExecutor(2) as nodes:
        calls = [
            nodes.submit(agree, store, rank, ranks, 5 + rank, multiple=1, patience=PATIENCE) for rank in reversed(ranks)
        ]
        assert [call.result(PATIENCE) for call in calls] == [9, 9]
    assert agree(MemoryStore(), 2, (2,), 5, multiple=1, patience=PATIENCE) == 6


def test_missing_node_prevents_a_common_step():
    store = MemoryStore()
    with pytest.raises(TimeoutError):
        agree(store, 0, range(2), 5, multiple=1, patience=0.05)
    assert agree(store, 1, range(2), 6, multiple=1, patience=PATIENCE) is None  # rank 0 has told the others


def test_late_first_node_does_not_count_a_node_that_has_given_up():
    store = MemoryStore()
    with pytest.raises(TimeoutError):
        agree(store, 1, range(2), 5, multiple=1, patience=0.05)
    assert agree(store, 0, range(2), 7, multiple=1, patience=PATIENCE) is None


def test_node_that_waited_too_long_takes_a_step_that_the_first_node_has_published():
    class Late(MemoryStore):
        def wait(self, keys, timeout):
            self.set("elastic/stop/at", "6")  # at the same moment
            raise TimeoutError

    assert agree(Late(), 1, range(2), 5, multiple=1, patience=PATIENCE) == 6


def test_first_node_takes_no_step_that_another_node_has_given_up():
    store = MemoryStore()
    store.set("elastic/stop/1", "5")
    store.set("elastic/stop/at", "-1")
    assert agree(store, 0, range(2), 5, multiple=1, patience=PATIENCE) is None


@pytest.mark.parametrize(("highest", "multiple"), [(2**63 - 1, 1), (5, 2**63)])
def test_step_beyond_64_bits_is_no_common_step(highest, multiple):
    assert agreed(highest, 3, multiple=multiple) == [None, None]
    assert agreed(highest, multiple=multiple) == [None]


def test_single_node_does_not_use_the_store():
    store = MemoryStore()
    agree(store, 0, range(1), 5, multiple=1, patience=PATIENCE)
    assert store.num_keys() == 0


@pytest.mark.parametrize("value", ["", "x", "9" * 5000, "1.5"])
def test_garbage_in_the_store_is_an_error(value):
    store = MemoryStore()
    store.set("elastic/stop/1", value)
    try:
        step = agree(store, 0, range(2), 5, multiple=1, patience=PATIENCE)
    except ValueError:
        return
    assert step is None  # a number that is cut off is a number, but too large for a page


# What is an orderly stop


@pytest.mark.parametrize(
    ("verdict", "asked", "state", "orderly"),
    [
        (None, "received SIGTERM", WorkerState.HEALTHY, True),
        (Verdict(Outcome.RESTART, "b joined"), "received SIGTERM", WorkerState.HEALTHY, True),
        (Verdict(Outcome.RESTART, "b failed", failed=True), "received SIGTERM", WorkerState.HEALTHY, False),
        (Verdict(Outcome.RESTART, "b was lost", lost=True), "received SIGTERM", WorkerState.HEALTHY, False),
        (Verdict(Outcome.DRAINED, "asked"), "", WorkerState.HEALTHY, True),
        (Verdict(Outcome.RESTART, "b joined"), "", WorkerState.HEALTHY, True),
        (Verdict(Outcome.RESTART, "b was lost", lost=True), "", WorkerState.HEALTHY, False),
        (Verdict(Outcome.RESTART, "b failed", failed=True), "", WorkerState.HEALTHY, False),
        (Verdict(Outcome.FENCED, "no store"), "", WorkerState.HEALTHY, False),
        (Verdict(Outcome.CLOSED, "failed"), "", WorkerState.HEALTHY, False),
        (None, "", WorkerState.FAILED, False),
    ],
)
def test_only_requests_and_changes_of_membership_are_orderly(verdict, asked, state, orderly):
    seen = Observation(RunResult(state), asked, verdict)
    assert supervise(RestartBudget(3, shared=True), seen).orderly is orderly


# The agent


def stopped(make_node, steps, reluctant=(), fails_to_save=(), **more):
    """Run workers that announce these steps until a signal comes. Returns them."""

    def begin(plan, workers):
        workers.steps = dict(enumerate(steps))
        node.agent.receive_signal(TERM)

    node = make_node(workers=FakeWorkers(begin, reluctant=reluctant, fails_to_save=fails_to_save), **more)
    with pytest.raises(SignalException):
        node.run()
    node.workers.reports = [fact.stop for fact in node.observer.phases if fact.stop]
    return node.workers


def test_workers_save_after_the_same_step_and_get_no_signal(make_node):
    workers = stopped(make_node, [3, 5])
    assert workers.stops == [6]
    assert workers.signals == []


def test_workers_that_announce_no_step_get_the_signal_at_once(make_node):
    workers = stopped(make_node, [])
    assert workers.stops == [None]
    assert workers.signals == [TERM, CONT]


def test_worker_that_does_not_save_is_reported_and_gets_the_signal(make_node, logged):
    workers = stopped(make_node, [3, 5], shutdown_timeout=0.4, reluctant=[1])
    assert workers.stops == [6]
    assert workers.signals == [TERM, CONT]
    assert "workers have not saved: local_ranks=1 step=6" in logged()
    assert {(stop.round, stop.step) for stop in workers.reports} == {(1, 6)}
    assert (workers.reports[-1].saved, workers.reports[-1].unsaved) == ((0,), (1,))
    assert len(workers.reports) == len({(stop.saved, stop.unsaved) for stop in workers.reports})


class Reluctant(FakeWorkers):
    """One worker that ends only with SIGKILL, while each wait for it takes a second. It has saved at `saves_at`."""

    def __init__(self, clock, saves_at=None):
        super().__init__(reluctant=[0], ignore_signals=[0])
        self.clock = clock
        self.saves_at = saves_at
        self.times = {}
        self.steps = {0: 5}
        self.readable, writable = os.pipe()
        os.close(writable)
        self.start(RoundPlan(1, "job", "node", "role", 0, 1, 1, 1, "::1", 1, False, 0, 0, (WorkerRanks(0, 0, 0),)))

    def sentinels(self):
        if self.clock.advance(1.0) == self.saves_at:
            self.acknowledged = [0]
        return [self.readable]

    def send_signal(self, signum):
        self.times[signum] = self.clock.now()
        super().send_signal(signum)

    def close(self):
        os.close(self.readable)
        super().close()


@pytest.mark.parametrize(("saves_at", "asked_at"), [(None, 15.0), (3.0, 3.0)])
def test_saving_takes_at_most_half_of_the_grace_period_and_does_not_prolong_it(saves_at, asked_at):
    clock = FakeClock()
    workers, events = Reluctant(clock, saves_at), EventQueue(clock)
    saving = CommonStep(workers, events, clock, lambda highest: highest + 1, "a drain", lambda *_: None)
    try:
        GroupStop(workers, events, clock, 10.0).stop(TERM, 30.0, saving=saving)
    finally:
        events.close()
        workers.close()
    assert workers.times == {TERM: asked_at, CONT: asked_at, signal.SIGKILL: 30.0}


def test_second_signal_ends_saving_and_the_grace_period(make_node):
    def begin(plan, workers):
        workers.steps = {0: 3, 1: 5}
        node.agent.receive_signal(TERM)
        threading.Timer(0.6, node.agent.receive_signal, [TERM]).start()

    node = make_node(workers=FakeWorkers(begin, ignore_signals=[0, 1], reluctant=[0, 1]), shutdown_timeout=3600)
    with pytest.raises(SignalException):
        node.run()
    assert node.workers.stops == [6]
    assert node.workers.signals == [TERM, CONT, signal.SIGKILL]


def test_failure_while_saving_is_named_and_leaves_the_others_their_time(make_node, logged):
    begun = SystemClock().now()
    workers = stopped(make_node, [3, 5], shutdown_timeout=2.0, reluctant=[1], fails_to_save=[0])
    assert SystemClock().now() - begun >= 1.0
    assert workers.signals == [TERM, CONT]
    assert 'workers have not saved: local_ranks=0,1 step=6 failed="local rank 0: exit code 1"' in logged()


@pytest.mark.parametrize("at", [None, -5.0, 5.0])
def test_workers_save_before_a_notice_takes_effect(make_node, at):
    def begin(plan, workers):
        workers.steps = {0: 3, 1: 5}
        node.agent.receive_notice("cloud", Notice("reclaimed", None if at is None else SystemClock().timestamp() + at))

    node = make_node(workers=FakeWorkers(begin), shutdown_timeout=3600)
    with pytest.raises(PreemptedError, match="reclaimed"):
        node.run()
    assert node.workers.stops == [6]
    assert [fact.reason for fact in node.observer.phases][-2:] == ["reclaimed", "reclaimed"]


def test_notice_during_a_restart_limits_the_stop_and_is_announced(make):
    deadlines = []

    class Noticed(Ordered):
        def ask_to_stop(self, until, reason):
            assert reason == "b joined"
            deadlines.append(until)
            node.agent.receive_notice("cloud", Notice("reclaimed", SystemClock().timestamp() + 1.0))

    def begin(plan, workers):
        workers.steps = {0: 3, 1: 5}
        node.handler.give(Verdict(Outcome.RESTART, "b joined"))

    node = make(begin, workers=Noticed, ignore_signals=[0, 1], shutdown_timeout=3600)
    with pytest.raises(PreemptedError, match="reclaimed"):
        node.run()
    assert signal.SIGKILL in node.workers.signals
    assert len(node.workers.plans) == 1
    assert [call[1] for call in node.handler.calls if call[0] == "leave"] == ["reclaimed"]
    assert [until < deadlines[0] - 3000 for until in deadlines] == [False, True]


@pytest.mark.parametrize(("reason", "at"), [("", None), (" ", 5.0), (None, None), ("a", float("nan")), ("a", "soon")])
def test_invalid_notice_is_refused(reason, at):
    with pytest.raises(ValueError, match="notice"):
        Notice(reason, at)


def test_withdrawn_notice_does_not_stop_the_workers(make_node):
    def begin(plan, workers):
        node.agent.receive_notice("cloud", Notice("reclaimed", SystemClock().timestamp() + 7200))
        node.agent.receive_notice("cloud", None)
        for rank in plan.ranks:
            workers.end(rank.local, 0)

    node = make_node(begin, shutdown_timeout=3600)
    assert node.run().state is WorkerState.SUCCEEDED


def test_deadline_of_a_drain_limits_the_grace_period(make, capsys):
    verdict = Verdict(Outcome.DRAINED, "asked", within=0.4)
    node = make(lambda plan, workers: node.handler.give(verdict), ignore_signals=[0, 1], shutdown_timeout=3600)
    with pytest.raises(DrainedError):
        node.run()
    assert signal.SIGKILL in node.workers.signals
    assert "grace cut short" not in capsys.readouterr().err, "nothing but the deadline ended the grace period"


def test_failure_of_a_worker_leaves_no_time_to_save(make_node):
    def fails(plan, workers):
        workers.steps = {0: 3, 1: 5}
        workers.end(0, 3)

    node = make_node(fails)
    node.run()
    assert node.workers.stops == []

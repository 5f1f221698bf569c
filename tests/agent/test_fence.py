"""A node that its handler fences off: it stops its workers and joins again, with a handler of rounds."""

from __future__ import annotations

import threading

import pytest
from agent_fakes import FakeRounds
from round_of_two import (
    FENCED,
    FOR_EVER,
    TERM,
    WELL,
    OrderedRounds,
    decided,
    fail,
    in_order,
    pair_then,
    succeed,
    then,
    two_nodes,
)

from elastic_core import report
from elastic_core.agent import WorkerState
from elastic_core.clock import Instant, SystemClock
from elastic_core.errors import ExitCode, RendezvousClosedError, RendezvousConnectionError, SignalException
from elastic_core.interfaces.observer import RestartDecided

GONE = RendezvousConnectionError("the store has not come back within 600 s")


def cut_off(node):
    """What workers do in a round in which their node is fenced off."""
    return lambda plan, workers: node().handler.give(FENCED)


def fail_and_be_cut_off(node):
    def on_start(plan, workers):
        fail(plan, workers)
        node().handler.give(FENCED)

    return on_start


def test_it_stops_its_workers_and_joins_again_for_free(make):
    node = make(
        then(cut_off(lambda: node), succeed),
        on_success=lambda rounds: rounds.give(WELL),
        max_restarts=0,
    )
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["SIGTERM", "SIGCONT"]  # and nobody is told, for nobody can be
    assert len(node.handler.named("next_rendezvous")) == 2
    assert [plan.restart_count for plan in node.workers.plans] == [0, 0]
    assert decided(node) == [RestartDecided("job", 1, "membership", FENCED.reason, 0, 0)]


def test_workers_have_no_more_grace_than_the_others_wait(make):
    """What a worker writes at SIGTERM must not come between the steps of those that have gone on."""
    node = make(then(cut_off(lambda: node), succeed), on_success=lambda rounds: rounds.give(WELL), deaf=[0, 1],
                shutdown_timeout=FOR_EVER)  # fmt: skip
    node.handler.due = Instant(SystemClock().now() + 0.1)
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["SIGTERM", "SIGCONT", "SIGKILL"]
    assert node.handler.due <= SystemClock().now() < node.handler.due + 2.0


def test_a_handler_that_cannot_say_how_long_its_workers_have_does_not_hold_up_their_stop(make):
    class Broken(OrderedRounds):
        def stop_by(self):
            raise ValueError("a plugin's")

    node = make(then(cut_off(lambda: node), succeed), on_success=lambda rounds: rounds.give(WELL), handlers=Broken)
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["SIGTERM", "SIGCONT"]


def test_it_has_stopped_its_workers_before_it_joins(make):
    def join():
        node.order.append(f"join with {len(node.workers.running())} running")
        return two_nodes(2)

    node = make(then(cut_off(lambda: node), succeed), pair_then(join), on_success=lambda rounds: rounds.give(WELL))
    node.run()
    assert node.order == ["SIGTERM", "SIGCONT", "join with 0 running"]


def test_its_workers_have_their_grace(make):
    node = make(
        then(cut_off(lambda: node), succeed),
        on_success=lambda rounds: rounds.give(WELL),
        deaf=[1],
        shutdown_timeout=0.1,
    )
    begun = SystemClock().now()
    assert node.run().state is WorkerState.SUCCEEDED
    assert SystemClock().now() - begun >= 0.1
    assert node.order == ["SIGTERM", "SIGCONT", "SIGKILL"]


def test_a_store_that_does_not_come_back_ends_the_agent(make):
    node = make(cut_off(lambda: node), pair_then(GONE))
    with pytest.raises(RendezvousConnectionError, match="has not come back") as gone:
        node.run()
    assert report.exit_code_of(gone.value) == ExitCode.STORE_UNREACHABLE == 4
    assert in_order(node, "SIGTERM", "SIGCONT", "SIGKILL") == ["SIGTERM", "SIGCONT"]
    assert node.workers.running() == []


def test_a_failure_seen_at_the_same_time_is_told(make):
    node = make(
        then(fail_and_be_cut_off(lambda: node), succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_success=lambda rounds: rounds.give(WELL),
    )
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["report_failure", "SIGTERM", "SIGCONT", "report_failure"]
    assert [fact.failure.reason for fact in node.observer.facts if hasattr(fact, "failure")] == ["exit code 3"]
    assert [plan.restart_count for plan in node.workers.plans] == [0, 1]
    assert [fact.cause for fact in decided(node)] == ["membership"]


def test_a_failure_seen_at_the_same_time_is_not_lost_if_the_store_does_not_come_back(make):
    node = make(fail_and_be_cut_off(lambda: node), pair_then(GONE))
    with pytest.raises(RendezvousConnectionError) as gone:
        node.run()
    assert {rank: failure.reason for rank, failure in gone.value.failures.items()} == {0: "exit code 3"}


def test_a_failure_seen_at_the_same_time_that_the_job_does_not_forgive(make):
    node = make(fail_and_be_cut_off(lambda: node), pair_then(RendezvousClosedError("no restart left")))
    result = node.run()
    assert (result.is_failed(), list(result.failures)) == (True, [0])


def test_a_node_whose_workers_have_just_succeeded_is_done(make):
    def on_start(plan, workers):
        succeed(plan, workers)
        node.handler.give(FENCED)

    node = make(on_start)
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.handler.named("next_rendezvous")) == 1
    assert node.finished.reason.startswith("every worker succeeded; not waiting for other nodes' workers")


def test_a_signal_ends_the_wait_for_the_store(make):
    def join():
        joins.set()
        node.handler.released.wait(FOR_EVER)

    joins = threading.Event()
    signalling = threading.Thread(target=lambda: joins.wait(60) and node.agent.receive_signal(TERM))
    node = make(cut_off(lambda: node), pair_then(join))
    signalling.start()
    with pytest.raises(SignalException):
        node.run()
    signalling.join(60)


class Silent(FakeRounds):
    """A store that hangs tells nothing: the node is cut off at the deadline, and nothing but the clock tells."""

    def verdict(self):
        return FENCED if self.deadline and SystemClock().now() >= self.deadline else None


def test_the_handler_is_asked_again_when_it_wants_to_be(make_node):
    def on_start(plan, workers):
        handler.deadline = Instant(SystemClock().now() + 0.1)

    handler = Silent(pair_then(GONE))
    node = make_node(on_start, handler)
    with pytest.raises(RendezvousConnectionError):
        node.run()
    assert [fact.reason for fact in decided(node)] == [FENCED.reason]

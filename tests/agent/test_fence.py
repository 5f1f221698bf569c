"""A fenced node stops its workers and rejoins, with a round handler."""

from __future__ import annotations

import pytest
from agent_fakes import FakeRounds
from round_of_two import (
    FENCED,
    FOREVER,
    OrderedRounds,
    decided,
    fail,
    in_order,
    in_turn,
    pair_then,
    succeed,
    two_nodes,
)

from elastic_core import report
from elastic_core.agent import WorkerState
from elastic_core.clock import Instant, SystemClock
from elastic_core.errors import ExitCode, RendezvousClosedError, RendezvousConnectionError
from elastic_core.interfaces.observer import RestartDecided

STORE_LOST = RendezvousConnectionError("the store has not come back within 600 s")


def cut_off(node):
    """A worker script for a round in which the node is fenced."""
    return lambda plan, workers: node().handler.give(FENCED)


def fail_and_be_cut_off(node):
    def on_start(plan, workers):
        fail(plan, workers)
        node().handler.give(FENCED)

    return on_start


def test_fenced_node_stops_its_workers_and_then_rejoins_for_free(make):
    def join():
        node.order.append(f"join with {len(node.workers.running())} running")
        return two_nodes(2)

    node = make(in_turn(cut_off(lambda: node), succeed), pair_then(join), max_restarts=0)
    assert node.run().state is WorkerState.SUCCEEDED
    # without an announcement: no node could receive it
    assert node.order == ["SIGTERM", "SIGCONT", "join with 0 running"]
    assert len(node.handler.calls_to("next_rendezvous")) == 2
    assert [plan.restart_count for plan in node.workers.plans] == [0, 0]
    assert decided(node) == [RestartDecided("job", 1, "membership", FENCED.reason, 0, 0)]


def test_grace_period_ends_at_the_handlers_deadline(make):
    """Output that a worker writes on SIGTERM must not mix with the steps of nodes that have re-formed."""
    node = make(in_turn(cut_off(lambda: node), succeed),
                ignore_signals=[0, 1], shutdown_timeout=FOREVER)  # fmt: skip
    node.handler.due = Instant(SystemClock().now() + 0.1)
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["SIGTERM", "SIGCONT", "SIGKILL"]
    assert node.handler.due <= SystemClock().now() < node.handler.due + 2.0


def test_handler_error_in_stop_by_does_not_delay_the_stop(make):
    class Broken(OrderedRounds):
        def stop_by(self):
            raise ValueError("a plugin's")

    node = make(in_turn(cut_off(lambda: node), succeed), handlers=Broken)
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["SIGTERM", "SIGCONT"]


def test_unrecovered_store_ends_the_agent(make):
    node = make(cut_off(lambda: node), pair_then(STORE_LOST))
    with pytest.raises(RendezvousConnectionError, match="has not come back") as caught:
        node.run()
    assert report.exit_code_of(caught.value) == ExitCode.STORE_UNREACHABLE == 4
    assert in_order(node, "SIGTERM", "SIGCONT", "SIGKILL") == ["SIGTERM", "SIGCONT"]
    assert node.workers.running() == []


def test_failure_during_fencing_is_reported(make):
    node = make(in_turn(fail_and_be_cut_off(lambda: node), succeed), pair_then(two_nodes(2, restart_count=1)))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["report_failure", "SIGTERM", "SIGCONT", "report_failure"]
    assert [fact.failure.reason for fact in node.observer.facts if hasattr(fact, "failure")] == ["exit code 3"]
    assert [plan.restart_count for plan in node.workers.plans] == [0, 1]
    assert [fact.cause for fact in decided(node)] == ["membership"]


def test_failure_during_fencing_survives_loss_of_the_store(make):
    node = make(fail_and_be_cut_off(lambda: node), pair_then(STORE_LOST))
    with pytest.raises(RendezvousConnectionError) as caught:
        node.run()
    assert {rank: failure.reason for rank, failure in caught.value.failures.items()} == {0: "exit code 3"}


def test_failure_during_fencing_ends_the_job_without_restarts(make):
    node = make(fail_and_be_cut_off(lambda: node), pair_then(RendezvousClosedError("no restart left")))
    result = node.run()
    assert (result.is_failed(), list(result.failures)) == (True, [0])


def test_fenced_node_with_finished_workers_succeeds(make):
    def on_start(plan, workers):
        succeed(plan, workers)
        node.handler.give(FENCED)

    node = make(on_start)
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.handler.calls_to("next_rendezvous")) == 1
    assert node.finished.reason.startswith("every worker succeeded; not waiting for other nodes' workers")


class Silent(FakeRounds):
    """The store hangs, so only the clock shows that the node is fenced at its deadline."""

    def verdict(self):
        return FENCED if self.deadline and SystemClock().now() >= self.deadline else None


def test_handler_is_polled_at_its_deadline(make_node):
    def on_start(plan, workers):
        handler.deadline = Instant(SystemClock().now() + 0.1)

    handler = Silent(pair_then(STORE_LOST))
    node = make_node(on_start, handler)
    with pytest.raises(RendezvousConnectionError):
        node.run()
    assert [fact.reason for fact in decided(node)] == [FENCED.reason]

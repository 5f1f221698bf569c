"""The local agent with a round handler: the data of a round, and what ends it."""

from __future__ import annotations

import threading

from agent_fakes import round_info
from elastic_testing import FakeClock
from round_of_two import (
    CONT,
    NODE_JOINED,
    PEER_FAILED,
    TERM,
    decided,
    in_turn,
    let_time_pass,
    pair_then,
    succeed,
    two_nodes,
)

from elastic_core.agent import WorkerState
from elastic_core.interfaces.observer import RestartDecided
from elastic_core.interfaces.workers import WorkerRanks


def test_round_sets_number_restart_count_and_ranks(make):
    formed = round_info(7, [("reader", 3), ("trainer", 1), ("trainer", 2)], rank=2, restart_count=4)
    node = make(succeed, [formed], max_restarts=9)
    assert node.run().state is WorkerState.SUCCEEDED
    (plan,) = node.workers.plans
    assert (plan.round, plan.restart_count, plan.max_restarts) == (7, 4, 9)
    assert (plan.group_rank, plan.group_world_size, plan.world_size, plan.role_world_size) == (2, 3, 6, 3)
    assert plan.ranks == (WorkerRanks(0, 4, 1), WorkerRanks(1, 5, 2))
    assert (node.finished.restart_count, node.observer.facts[0].round) == (4, 7)
    assert node.handler.calls_to("num_nodes_waiting") == node.handler.calls_to("set_closed") == []


def test_failure_of_a_peer_restarts_with_the_rounds_count(make):
    node = make(
        in_turn(lambda plan, workers: node.handler.give(PEER_FAILED), succeed),
        pair_then(two_nodes(2, restart_count=1)),
        max_restarts=3,
    )
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.workers.signals == [TERM, CONT]
    assert [plan.restart_count for plan in node.workers.plans] == [0, 1]
    assert decided(node) == [RestartDecided("job", 1, "failure", "rank 9 on node2: killed by SIGKILL", 1, 3)]
    assert "WorkerFailed" not in node.facts
    assert node.handler.calls_to("report_failure") == []


def test_joining_node_ends_the_round_for_free(make):
    node = make(in_turn(lambda plan, workers: node.handler.give(NODE_JOINED), succeed), max_restarts=0)
    node.run()
    assert decided(node) == [RestartDecided("job", 1, "membership", "node5 joined", 0, 0)]
    assert [plan.round for plan in node.workers.plans] == [1, 2]


def test_event_without_a_verdict_changes_nothing(make):
    def on_start(plan, workers):
        node.handler.give(None)
        threading.Timer(0.05, succeed, [plan, workers]).start()

    node = make(on_start)
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.workers.plans) == 1


def test_missing_nodes_are_logged_while_waiting(make, logged):
    clock = FakeClock()
    node = make(succeed, [lambda: let_time_pass(node, clock) or two_nodes()], clock=clock)
    node.handler.missing = "1 of 2 joined, missing: node1"
    node.run()
    lines = logged()
    assert 'still waiting: waiting_for="the round to form" seconds=' in lines
    assert 'progress="1 of 2 joined, missing: node1"' in lines

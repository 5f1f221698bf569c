"""Failures in a job with a round handler: when they are reported, and how the job reacts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from round_of_two import (
    ELSEWHERE,
    FAILED_ELSEWHERE,
    NODE_JOINED,
    PEER_FAILED,
    TERM,
    Ordered,
    decided,
    fail,
    in_order,
    in_turn,
    pair_then,
    succeed,
    two_nodes,
)

from elastic_core.agent import WorkerState
from elastic_core.errors import RendezvousClosedError, RendezvousConnectionError, UnkillableWorkersError
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.observer import RestartDecided


def test_failure_is_reported_before_workers_stop(make):
    node = make(fail, pair_then(RendezvousClosedError("no restart left")))
    node.run()
    assert node.order == ["report_failure", "SIGTERM", "SIGCONT", "report_failure"]
    early, late = (failures for (failures,) in node.handler.calls_to("report_failure"))
    assert [(f.reason, f.node, f.round, f.exitcode) for f in early.values()] == [("exit code 3", "node7", 1, 3)]
    assert list(early) == list(late) == [0]


def test_second_report_has_all_failures(make):
    class Stubborn(Ordered):
        """One worker reacts to SIGTERM with its own failure."""

        def send_signal(self, signum):
            if signum == TERM and 1 in self.running():
                self.end(1, 7)
            super().send_signal(signum)

    node = make(fail, pair_then(RendezvousClosedError("no restart left")), workers=Stubborn)
    node.run()
    early, late = (failures for (failures,) in node.handler.calls_to("report_failure"))
    assert (list(early), list(late)) == ([0], [0, 1])


def test_restart_granted_by_the_job_overrides_own_budget(make):
    node = make(
        in_turn(fail, succeed),
        pair_then(two_nodes(2, restart_count=3)),
        max_restarts=0,  # the node's own budget does not apply
    )
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.facts == [
        "RoundFormed",
        "WorkersStarted",
        "WorkerFailed",
        "RestartDecided",
        "RoundFormed",
        "WorkersStarted",
        "AgentFinished",
    ]
    assert decided(node) == [RestartDecided("job", 1, "failure", "rank 0: exit code 3", 3, 0)]


def test_restart_reason_comes_from_the_verdict(make):
    node = make(
        in_turn(fail, succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_failure=lambda rounds: rounds.give(PEER_FAILED),
    )
    node.run()
    assert decided(node) == [RestartDecided("job", 1, "failure", PEER_FAILED.reason, 1, 3)]


@pytest.mark.parametrize("own_failure", [True, False])
def test_failure_caused_by_a_lost_node_is_reported_as_the_loss(make, own_failure):
    """It does not use the budget, which is 0."""
    first = replace(PEER_FAILED, judged=False)
    lost = Verdict(Outcome.RESTART, "lost node2: no heartbeat for 5 s; what followed: rank 0", lost=True)
    formed = two_nodes(2)
    formed = replace(formed, formed=replace(formed.formed, ended=lost))
    node = make(
        in_turn(fail if own_failure else lambda plan, workers: node.handler.give(first), succeed),
        pair_then(formed),
        on_failure=lambda rounds: rounds.give(first),
        max_restarts=0,
    )
    node.run()
    assert decided(node) == [RestartDecided("job", 1, "node lost", lost.reason, 0, 0)]
    assert node.facts.index("RestartDecided") == node.facts.index("RoundFormed", 1) - 1


def test_end_of_another_round_does_not_change_the_cause(make):
    """In the meantime other nodes formed a round and lost a node."""
    lost = Verdict(Outcome.RESTART, "lost node3: no heartbeat for 5 s", lost=True)
    formed = two_nodes(3, restart_count=1)
    formed = replace(formed, formed=replace(formed.formed, ended=lost))
    first = replace(PEER_FAILED, judged=False)
    node = make(in_turn(fail, succeed), pair_then(formed), on_failure=lambda rounds: rounds.give(first))
    node.run()
    assert [(fact.cause, fact.reason) for fact in decided(node)] == [("failure", first.reason)]


@pytest.mark.parametrize("own_failure", [True, False])
def test_hang_on_another_node_is_logged_with_its_stack(make, logged, own_failure):
    hung = replace(ELSEWHERE, reason="hang: no progress for 30 s", stack="Current thread:\n  in step")
    verdict = Verdict(Outcome.RESTART, "rank 9 on node2: hang: no progress", failed=True, failures={9: hung})
    node = make(
        in_turn(fail if own_failure else lambda plan, workers: node.handler.give(verdict), succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_failure=lambda rounds: rounds.give(verdict),
    )
    node.run()
    line = 'worker hangs: rank=9 node=node2 reason="hang: no progress for 30 s"'
    assert logged().count(f"{line}\n    Current thread:\n      in step\n") == 1
    assert [fact.cause for fact in decided(node)] == ["hang"]
    assert "node2" not in {fact.failure.node for fact in node.observer.facts if hasattr(fact, "failure")}


def test_failure_caused_by_a_membership_change_is_free(make):
    node = make(in_turn(fail, succeed), on_failure=lambda rounds: rounds.give(NODE_JOINED))
    node.run()
    assert [(fact.cause, fact.restart_count) for fact in decided(node)] == [("membership", 0)]


def test_exhausted_job_budget_fails_the_failed_node(make, logged):
    over = RendezvousClosedError("rank 0 on node7: exit code 3; all 3 restarts have been used (--max-restarts=3)")
    node = make(fail, pair_then(over))
    result = node.run()
    assert result.is_failed()
    assert {rank: failure.reason for rank, failure in result.failures.items()} == {0: "exit code 3"}
    assert decided(node) == []
    assert (node.finished.state, node.finished.reason) == ("FAILED", str(over))
    lines = logged()
    assert lines.count('worker failed: rank=0 pid=1000 round=1 reason="exit code 3"\n') == 1
    assert "agent finished: state=FAILED restarts=0\n" in lines
    assert node.handler.calls_to("leave") == []


def test_job_closed_during_the_stop_fails_the_node(make):
    closed = Verdict(Outcome.CLOSED, "rank 0 on node7: exit code 3; no restart is allowed", by="node7")
    node = make(fail, on_failure=lambda rounds: rounds.give(closed))
    result = node.run()
    assert (result.is_failed(), list(result.failures)) == (True, [0])
    assert node.finished.reason == "the job was closed by node7: rank 0 on node7: exit code 3; no restart is allowed"
    assert decided(node) == []
    assert node.handler.calls_to("set_closed") == []


def test_first_failure_is_the_one_named_by_the_job(make):
    node = make(fail, on_failure=lambda rounds: rounds.give(FAILED_ELSEWHERE))
    result = node.run()
    assert {rank: failure.caused_by for rank, failure in result.failures.items()} == {9: None, 0: 9}


def test_rendezvous_error_keeps_the_earlier_failure(make):
    node = make(fail, pair_then(RendezvousConnectionError("the store is gone")))
    with pytest.raises(RendezvousConnectionError) as left:
        node.run()
    assert list(left.value.failures) == [0]


def test_unkillable_workers_are_reported(make):
    node = make(fail, unkillable=[1], shutdown_timeout=0.0, kill_timeout=0.05)
    with pytest.raises(UnkillableWorkersError):
        node.run()
    assert in_order(node, "report_failure", "leave") == ["report_failure", "report_failure", "leave"]

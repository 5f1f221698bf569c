"""Failures of a job with a handler of rounds: who is told of them and when, and what the job makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from round_of_two import (
    ELSEWHERE,
    FAILED_ELSEWHERE,
    NODE_CAME,
    PEER_FAILED,
    TERM,
    WELL,
    Ordered,
    decided,
    fail,
    in_order,
    pair_then,
    succeed,
    then,
    two_nodes,
)

from elastic_core.agent import WorkerState
from elastic_core.errors import RendezvousClosedError, RendezvousConnectionError, UnkillableWorkersError
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.observer import RestartDecided


def test_the_others_learn_of_a_failure_before_the_workers_are_stopped(make):
    node = make(fail, pair_then(RendezvousClosedError("no restart left")))
    node.run()
    assert node.order == ["report_failure", "SIGTERM", "SIGCONT", "report_failure"]
    early, late = (failures for (failures,) in node.handler.named("report_failure"))
    assert [(f.reason, f.node, f.round, f.exitcode) for f in early.values()] == [("exit code 3", "node7", 1, 3)]
    assert list(early) == list(late) == [0]


def test_the_second_report_has_all_that_failed(make):
    class Stubborn(Ordered):
        """One that answers SIGTERM with a failure of its own."""

        def send_signal(self, signum):
            if signum == TERM and 1 in self.running():
                self.end(1, 7)
            super().send_signal(signum)

    node = make(fail, pair_then(RendezvousClosedError("no restart left")), workers=Stubborn)
    node.run()
    early, late = (failures for (failures,) in node.handler.named("report_failure"))
    assert (list(early), list(late)) == ([0], [0, 1])


def test_a_failure_that_the_job_forgives(make):
    node = make(
        then(fail, succeed),
        pair_then(two_nodes(2, restart_count=3)),
        on_success=lambda rounds: rounds.give(WELL),
        max_restarts=0,  # of this node's own, which does not count
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


def test_the_verdict_says_what_made_the_round_end(make):
    node = make(
        then(fail, succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_failure=lambda rounds: rounds.give(PEER_FAILED),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    assert decided(node) == [RestartDecided("job", 1, "failure", PEER_FAILED.reason, 1, 3)]


@pytest.mark.parametrize("own_failure", [True, False])
def test_a_failure_that_followed_from_a_lost_node_is_told_as_the_loss_once_that_is_known(make, own_failure):
    """With a budget of nothing, which it does not use."""
    first = replace(PEER_FAILED, judged=False)
    lost = Verdict(Outcome.RESTART, "lost node2: no beat for 5 s; what followed: rank 0", lost=True)
    formed = two_nodes(2)
    formed = replace(formed, formed=replace(formed.formed, ended=lost))
    node = make(
        then(fail if own_failure else lambda plan, workers: node.handler.give(first), succeed),
        pair_then(formed),
        on_failure=lambda rounds: rounds.give(first),
        on_success=lambda rounds: rounds.give(WELL),
        max_restarts=0,
    )
    node.run()
    assert decided(node) == [RestartDecided("job", 1, "node lost", lost.reason, 0, 0)]
    assert node.facts.index("RestartDecided") == node.facts.index("RoundFormed", 1) - 1


def test_how_an_earlier_round_ended_is_not_why_this_one_did(make):
    """Others formed a round meanwhile, and lost a node in it."""
    lost = Verdict(Outcome.RESTART, "lost node3: no beat for 5 s", lost=True)
    formed = two_nodes(3, restart_count=1)
    formed = replace(formed, formed=replace(formed.formed, ended=lost))
    first = replace(PEER_FAILED, judged=False)
    node = make(
        then(fail, succeed),
        pair_then(formed),
        on_failure=lambda rounds: rounds.give(first),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    assert [(fact.cause, fact.reason) for fact in decided(node)] == [("failure", first.reason)]


@pytest.mark.parametrize("own_failure", [True, False])
def test_a_hang_on_another_node_is_told_with_its_stack(make, said, own_failure):
    hung = replace(ELSEWHERE, reason="hang: no progress for 30 s", stack="Current thread:\n  in step")
    verdict = Verdict(Outcome.RESTART, "rank 9 on node2: hang: no progress", failed=True, failures={9: hung})
    node = make(
        then(fail if own_failure else lambda plan, workers: node.handler.give(verdict), succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_failure=lambda rounds: rounds.give(verdict),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    line = 'worker hangs: rank=9 node=node2 reason="hang: no progress for 30 s"'
    assert said().count(f"{line}\n    Current thread:\n      in step\n") == 1
    assert [fact.cause for fact in decided(node)] == ["hang"]
    assert "node2" not in {fact.failure.node for fact in node.observer.facts if hasattr(fact, "failure")}


def test_a_failure_that_followed_from_a_node_that_left_costs_nothing(make):
    node = make(
        then(fail, succeed),
        on_failure=lambda rounds: rounds.give(NODE_CAME),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    assert [(fact.cause, fact.restart_count) for fact in decided(node)] == [("membership", 0)]


def test_when_the_budget_of_the_job_is_used_up_the_node_that_failed_says_so(make, said):
    over = RendezvousClosedError("rank 0 on node7: exit code 3; all 3 restarts have been used (--max-restarts=3)")
    node = make(fail, pair_then(over))
    result = node.run()
    assert result.is_failed()
    assert {rank: failure.reason for rank, failure in result.failures.items()} == {0: "exit code 3"}
    assert decided(node) == []
    assert (node.finished.state, node.finished.reason) == ("FAILED", str(over))
    assert "agent finished: state=FAILED restarts=0\n" in said()
    assert node.handler.named("leave") == []


def test_a_job_that_is_closed_while_the_failed_workers_are_stopped(make):
    closed = Verdict(Outcome.CLOSED, "rank 0 on node7: exit code 3; no restart is allowed", by="node7")
    node = make(fail, on_failure=lambda rounds: rounds.give(closed))
    result = node.run()
    assert (result.is_failed(), list(result.failures)) == (True, [0])
    assert node.finished.reason == "the job was closed by node7: rank 0 on node7: exit code 3; no restart is allowed"
    assert decided(node) == []
    assert node.handler.named("set_closed") == []


def test_of_the_failures_here_and_elsewhere_the_first_is_the_one_that_the_job_names(make):
    node = make(fail, on_failure=lambda rounds: rounds.give(FAILED_ELSEWHERE))
    result = node.run()
    assert {rank: failure.caused_by for rank, failure in result.failures.items()} == {9: None, 0: 9}


def test_no_failure_is_hidden_by_what_goes_wrong_in_the_next_rendezvous(make):
    node = make(fail, pair_then(RendezvousConnectionError("the store is gone")))
    with pytest.raises(RendezvousConnectionError) as left:
        node.run()
    assert list(left.value.failures) == [0]


def test_workers_that_would_not_die_are_reported_too(make):
    node = make(fail, immortal=[1], shutdown_timeout=0.0, kill_timeout=0.05)
    with pytest.raises(UnkillableWorkersError):
        node.run()
    assert in_order(node, "report_failure", "leave") == ["report_failure", "report_failure", "leave"]

"""The restart policy as a table, and which failure came first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.agent import RunResult, WorkerState
from elastic_core.agent.supervise import (
    Observation,
    RestartBudget,
    RestartCause,
    cause_of_end,
    judged,
    supervise,
    together,
)
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.node import Round


def failed(*failures):
    return RunResult(WorkerState.FAILED, failures={failure.global_rank: failure for failure in failures})


def failure(rank=0, **fields):
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=3, global_rank=rank, reason="exit code 3", **fields)


RUNS = RunResult(WorkerState.HEALTHY)
UNHEALTHY = RunResult(WorkerState.UNHEALTHY)
DONE = RunResult(WorkerState.SUCCEEDED)
UNKNOWN = RunResult(WorkerState.UNKNOWN)
BROKEN = failed(failure())
HUNG = failed(replace(failure(), reason="hang: no progress"))
AFTER_HANG = failed(replace(failure(1), caused_by=0), replace(failure(), reason="hang: no progress"))
INCURABLE = failed(failure(curable=False, stderr_tail=("x", "SyntaxError: invalid syntax")))
FRESH = RestartBudget(1)
SPENT = RestartBudget(1, failures=1)
NONE = RestartBudget(0)
SHARED = RestartBudget(1, failures=1, shared=True)
TERM = "received SIGTERM"
NODES_WAITING = Verdict(Outcome.RESTART, "2 more nodes can join")
HUNG_ELSEWHERE = Verdict(Outcome.RESTART, "rank 0 on node2: hang: no progress", failed=True, failures=HUNG.failures)
PEER_FAILED = Verdict(Outcome.RESTART, "rank 9 on node2: killed by SIGKILL", failed=True)
NODE_FAILED = Verdict(Outcome.RESTART, "lost node2: no heartbeat for 5 s", lost=True)
UNJUDGED = Verdict(Outcome.RESTART, "rank 9 on node2: exit code 1", failed=True, judged=False)
FENCED = Verdict(Outcome.FENCED, "the store has not answered for 30 s")
DRAINED = Verdict(Outcome.DRAINED, "requested by the operator")
CLOSED = Verdict(Outcome.CLOSED, "rank 9: exit code 1; all 3 restarts have been used", by="node2")
CLOSED_ANONYMOUSLY = Verdict(Outcome.CLOSED, "enough")
JOB_DONE = Verdict(Outcome.CLOSED, "all workers succeeded", succeeded=True, by="node2")
VERDICTS = (None, NODES_WAITING, PEER_FAILED, HUNG_ELSEWHERE, FENCED, DRAINED, CLOSED, JOB_DONE)
BY_NODE2 = "the job was closed by node2: "
NOT_HERE = "all workers succeeded; this node's workers had not succeeded"
USED_UP = "rank 0: exit code 3; the only restart has been used (--max-restarts=1)"
NOT_ALLOWED = "rank 0: exit code 3; no restart is allowed (--max-restarts=0)"
INCURABLE_REASON = "rank 0: exit code 3; a restart would not help: SyntaxError: invalid syntax"
FAILURE, HANG, MEMBERSHIP = RestartCause.FAILURE, RestartCause.HANG, RestartCause.MEMBERSHIP
NODE_LOST = RestartCause.LOST
REPORT_AND_STOP = "report stop report"
RESTART, REJOIN = "stop join", "join"

WORKERS_RUN = [
    # budget, result, asked, verdict -> orders, cause, reason
    (FRESH, RUNS, "", None, "", None, "workers run"),
    (FRESH, RUNS, "", NODES_WAITING, RESTART, MEMBERSHIP, "2 more nodes can join"),
    (SPENT, RUNS, "", NODES_WAITING, RESTART, MEMBERSHIP, "2 more nodes can join"),
    (SHARED, RUNS, "", NODES_WAITING, RESTART, MEMBERSHIP, "2 more nodes can join"),
    (SHARED, RUNS, "", PEER_FAILED, RESTART, FAILURE, "rank 9 on node2: killed by SIGKILL"),
    (SHARED, RUNS, "", NODE_FAILED, RESTART, NODE_LOST, "lost node2: no heartbeat for 5 s"),
    (SHARED, RUNS, "", UNJUDGED, RESTART, FAILURE, "rank 9 on node2: exit code 1"),
    (SHARED, RUNS, "", HUNG_ELSEWHERE, RESTART, HANG, "rank 0 on node2: hang: no progress"),
    (SHARED, RUNS, "", FENCED, RESTART, MEMBERSHIP, "the store has not answered for 30 s"),
    (SHARED, RUNS, "", DRAINED, "depart stop yield", None, "drained: requested by the operator"),
    (SHARED, RUNS, "", JOB_DONE, "stop yield", None, BY_NODE2 + NOT_HERE),
    (SHARED, RUNS, "", CLOSED, "stop yield", None, BY_NODE2 + "rank 9: exit code 1; all 3 restarts have been used"),
    (SHARED, RUNS, "", CLOSED_ANONYMOUSLY, "stop yield", None, "the job was closed by another node: enough"),
]

HAVE_SUCCEEDED = [
    (budget, DONE, "", verdict, "collect", None, "every worker succeeded")
    for budget in (FRESH, SHARED)
    for verdict in VERDICTS
]

SIGNALLED = [
    (budget, result, TERM, verdict, "leave", None, "received SIGTERM")
    for budget in (FRESH, SHARED)
    for result in (RUNS, DONE, BROKEN)
    for verdict in VERDICTS
]

HAVE_FAILED = [
    *((SHARED, BROKEN, None, verdict, REPORT_AND_STOP, None, "rank 0: exit code 3") for verdict in VERDICTS),
    (FRESH, BROKEN, "", None, REPORT_AND_STOP, None, "rank 0: exit code 3"),
    (SPENT, BROKEN, "", None, REPORT_AND_STOP, None, "rank 0: exit code 3"),
    (FRESH, INCURABLE, "", None, REPORT_AND_STOP, None, "rank 0: exit code 3"),
    (FRESH, AFTER_HANG, "", None, REPORT_AND_STOP, None, "rank 0: hang: no progress"),
    (FRESH, failed(), "", None, REPORT_AND_STOP, None, "the group is FAILED"),
    (FRESH, UNKNOWN, "", None, REPORT_AND_STOP, None, "the group is UNKNOWN"),
    (FRESH, UNHEALTHY, "", None, REPORT_AND_STOP, None, "the group is UNHEALTHY"),
]

ARE_COMPLETE = [
    (FRESH, DONE, "", None, "succeed", None, "every worker succeeded"),
    *((SHARED, DONE, None, verdict, "succeed", None, "every worker succeeded") for verdict in VERDICTS),
    (FRESH, DONE, TERM, None, "leave", None, "received SIGTERM"),
    (FRESH, BROKEN, "", None, REJOIN, FAILURE, "rank 0: exit code 3; restart 1 of 1"),
    (FRESH, BROKEN, "", NODES_WAITING, REJOIN, FAILURE, "rank 0: exit code 3; restart 1 of 1"),
    (FRESH, HUNG, "", None, REJOIN, HANG, "rank 0: hang: no progress; restart 1 of 1"),
    (FRESH, AFTER_HANG, "", None, REJOIN, HANG, "rank 0: hang: no progress; restart 1 of 1"),
    (FRESH, failed(), "", None, REJOIN, FAILURE, "the group is FAILED; restart 1 of 1"),
    (FRESH, UNKNOWN, "", None, REJOIN, FAILURE, "the group is UNKNOWN; restart 1 of 1"),
    (FRESH, UNHEALTHY, "", None, REJOIN, FAILURE, "the group is UNHEALTHY; restart 1 of 1"),
    (NONE, UNHEALTHY, None, None, "fail", None, "the group is UNHEALTHY; no restart is allowed (--max-restarts=0)"),
    (SPENT, BROKEN, "", None, "fail", None, USED_UP),
    (NONE, BROKEN, None, None, "fail", None, NOT_ALLOWED),
    (FRESH, INCURABLE, "", None, "fail", None, INCURABLE_REASON),
    # a shared budget: the handler decides what ended the round and whether it costs a restart
    (SHARED, BROKEN, "", None, REJOIN, FAILURE, "rank 0: exit code 3"),
    (SHARED, INCURABLE, "", None, REJOIN, FAILURE, "rank 0: exit code 3"),
    (SHARED, HUNG, "", None, REJOIN, HANG, "rank 0: hang: no progress"),
    (SHARED, BROKEN, "", PEER_FAILED, REJOIN, FAILURE, "rank 9 on node2: killed by SIGKILL"),
    (SHARED, HUNG, "", PEER_FAILED, REJOIN, FAILURE, "rank 9 on node2: killed by SIGKILL"),
    (SHARED, BROKEN, "", HUNG_ELSEWHERE, REJOIN, HANG, "rank 0 on node2: hang: no progress"),
    (SHARED, BROKEN, "", NODES_WAITING, REJOIN, MEMBERSHIP, "2 more nodes can join"),
    (SHARED, BROKEN, "", FENCED, REJOIN, MEMBERSHIP, "the store has not answered for 30 s"),
    (SHARED, BROKEN, "", CLOSED, "fail", None, BY_NODE2 + "rank 9: exit code 1; all 3 restarts have been used"),
    (SHARED, BROKEN, "", JOB_DONE, "fail", None, BY_NODE2 + NOT_HERE),
    (SHARED, BROKEN, "", DRAINED, "depart yield", None, "drained: requested by the operator"),
    (SHARED, BROKEN, TERM, None, "leave", None, "received SIGTERM"),
]

TABLE = [
    *((False, *row) for row in (*WORKERS_RUN, *HAVE_SUCCEEDED, *SIGNALLED, *HAVE_FAILED)),
    *((True, *row) for row in ARE_COMPLETE),
]


def orders_in_words(decision):
    return " ".join(order.value for order in decision.orders)


@pytest.mark.parametrize(("complete", "budget", "result", "asked", "verdict", "orders", "cause", "reason"), TABLE)
def test_decisions_match_the_table(complete, budget, result, asked, verdict, orders, cause, reason):
    decision = supervise(budget, Observation(result, asked, verdict, complete))
    assert (orders_in_words(decision), decision.cause, decision.reason) == (orders, cause, reason)
    assert decision.uses_budget is (cause in (FAILURE, HANG))


def test_uncertain_failure_is_judged_when_the_next_round_forms():
    decision = supervise(SHARED, Observation(BROKEN, verdict=UNJUDGED, complete=True))
    assert (decision.certain, decision.cause) == (False, FAILURE)
    after = judged(decision, NODE_FAILED)
    assert (after.cause, after.reason, after.orders) == (NODE_LOST, NODE_FAILED.reason, decision.orders)
    assert judged(decision, PEER_FAILED).cause is FAILURE
    assert judged(decision, None) is decision


def test_node_that_missed_a_round_was_lost_and_did_not_fail():
    assert cause_of_end(7, 5, Round(8, (), restart_count=5, ended=NODE_FAILED)) is NODE_FAILED
    missed = cause_of_end(7, 5, Round(9, (), restart_count=5, ended=NODES_WAITING))
    assert missed.lost and missed.reason == "round 8 formed without this node, which the other nodes considered lost"
    assert cause_of_end(7, 5, Round(9, (), restart_count=6, ended=NODES_WAITING)) is None
    assert cause_of_end(7, 5, Round(2, (), restart_count=5, ended=NODES_WAITING)) is None  # state lost


def test_first_failure_decides_and_is_named():
    effect = failure(rank=0, caused_by=1, curable=False)
    cause = failure(rank=1)
    decision = supervise(FRESH, Observation(failed(effect, cause), complete=True))
    assert (orders_in_words(decision), decision.reason) == (REJOIN, "rank 1: exit code 3; restart 1 of 1")


@pytest.mark.parametrize(
    ("verdict", "certain"), [(None, False), (PEER_FAILED, True), (NODES_WAITING, True), (FENCED, True)]
)
def test_shared_budget_decision_is_uncertain_without_verdict(verdict, certain):
    assert supervise(SHARED, Observation(BROKEN, verdict=verdict, complete=True)).certain is certain


def test_incurable_failure_without_stderr_has_a_reason():
    decision = supervise(FRESH, Observation(failed(failure(curable=False)), complete=True))
    assert decision.reason == "rank 0: exit code 3; a restart would not help: the command cannot run"


# The first failure, when several nodes report one


def reported(rank, node="node0", **fields):
    return ProcessFailure(rank, 100 + rank, 1, global_rank=rank, node=node, **fields)


def attributed(failures):
    return {rank: failure.caused_by for rank, failure in failures.items()}


def test_failures_known_only_locally_stay_unchanged():
    own = {1: reported(1, timestamp=5.0), 0: reported(0, caused_by=1)}
    assert together(own, {}) == own
    assert together({}, {}) == {}


def test_first_failure_of_the_job_is_the_cause_despite_clocks():
    job = {9: reported(9, "node2", timestamp=900.0), 4: reported(4, "node1", timestamp=5.0)}
    own = {1: reported(1, timestamp=1.0)}
    found = together(own, job)
    assert attributed(found) == {9: None, 4: 9, 1: 9}
    assert found[9].node == "node2"


def test_own_failure_record_replaces_the_reported_one():
    job = {1: reported(1, message="half"), 9: reported(9, "node2", caused_by=1)}
    found = together({1: reported(1, message="all of it")}, job)
    assert attributed(found) == {1: None, 9: 1}
    assert found[1].message == "all of it"


@pytest.mark.parametrize("own", [{}, {1: reported(1)}])
def test_job_failures_without_a_first_one_stay_unchanged(own):
    job = {9: reported(9, caused_by=3)}
    assert together(own, job) == {**job, **own}

"""The restart policy: its table, and a dumb model that counts failures in a loop."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.agent import RestartBudget, RunResult, WorkerState
from elastic_core.agent.supervise import Action, Cause, Observation, supervise
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.handler import Outcome, Verdict


def failed(*failures):
    return RunResult(WorkerState.FAILED, failures={failure.global_rank: failure for failure in failures})


def failure(rank=0, **fields):
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=3, global_rank=rank, reason="exit code 3", **fields)


RUNS = RunResult(WorkerState.HEALTHY)
DONE = RunResult(WorkerState.SUCCEEDED)
BROKEN = failed(failure())
HUNG = failed(replace(failure(), reason="hang: no progress"))
AFTER_HANG = failed(replace(failure(1), caused_by=0), replace(failure(), reason="hang: no progress"))
HOPELESS = failed(failure(curable=False, stderr_tail=("x", "SyntaxError: invalid syntax")))
FRESH = RestartBudget(1)
SPENT = RestartBudget(1, failures=1)
SHARED = RestartBudget(1, failures=1, shared=True)
TERM = signal.SIGTERM
COME = Verdict(Outcome.RESTART, "2 more node(s) want to take part")
HUNG_ELSEWHERE = Verdict(Outcome.RESTART, "rank 0 on node2: hang: no progress", failed=True, failures=HUNG.failures)
LOST = Verdict(Outcome.RESTART, "rank 9 on node2: killed by SIGKILL", failed=True)
FENCED = Verdict(Outcome.FENCED, "the store has not answered for 30 s")
DRAINED = Verdict(Outcome.DRAINED, "somebody asked for it")
CLOSED = Verdict(Outcome.CLOSED, "rank 9: exit code 1; all 3 restarts are used", by="node2")
CLOSED_BY_SOMEBODY = Verdict(Outcome.CLOSED, "enough")
WELL = Verdict(Outcome.CLOSED, "all workers succeeded", succeeded=True, by="node2")
BY_NODE2 = "the job was closed by node2: "

TABLE = [
    # budget, result, signal, verdict -> action, cause, reason
    (FRESH, RUNS, None, None, Action.CONTINUE, None, "workers run"),
    (FRESH, RUNS, None, COME, Action.RESTART, Cause.MEMBERSHIP, "2 more node(s) want to take part"),
    (SPENT, RUNS, None, COME, Action.RESTART, Cause.MEMBERSHIP, "2 more node(s) want to take part"),
    (FRESH, RUNS, TERM, None, Action.LEAVE, None, "received SIGTERM"),
    (FRESH, RUNS, TERM, COME, Action.LEAVE, None, "received SIGTERM"),
    (FRESH, RunResult(WorkerState.UNHEALTHY), None, None, Action.CONTINUE, None, "workers run"),
    (FRESH, DONE, None, None, Action.SUCCEED, None, "every worker succeeded"),
    (FRESH, DONE, None, COME, Action.SUCCEED, None, "every worker succeeded"),
    (FRESH, DONE, TERM, None, Action.LEAVE, None, "received SIGTERM"),
    (FRESH, BROKEN, None, None, Action.RESTART, Cause.FAILURE, "rank 0: exit code 3; restart 1 of 1"),
    (FRESH, BROKEN, None, COME, Action.RESTART, Cause.FAILURE, "rank 0: exit code 3; restart 1 of 1"),
    (FRESH, HUNG, None, None, Action.RESTART, Cause.HANG, "rank 0: hang: no progress; restart 1 of 1"),
    (FRESH, AFTER_HANG, None, None, Action.RESTART, Cause.HANG, "rank 0: hang: no progress; restart 1 of 1"),
    (SHARED, HUNG, None, None, Action.RESTART, Cause.HANG, "rank 0: hang: no progress"),
    (SHARED, BROKEN, None, HUNG_ELSEWHERE, Action.RESTART, Cause.HANG, "rank 0 on node2: hang: no progress"),
    (SHARED, HUNG, None, LOST, Action.RESTART, Cause.FAILURE, "rank 9 on node2: killed by SIGKILL"),
    (SHARED, RUNS, None, HUNG_ELSEWHERE, Action.RESTART, Cause.HANG, "rank 0 on node2: hang: no progress"),
    (FRESH, BROKEN, TERM, None, Action.LEAVE, None, "received SIGTERM"),
    (SPENT, BROKEN, None, None, Action.FAIL, None, "rank 0: exit code 3; all 1 restarts are used (--max-restarts)"),
    (
        RestartBudget(0),
        BROKEN,
        None,
        None,
        Action.FAIL,
        None,
        "rank 0: exit code 3; no restart is allowed (--max-restarts=0)",
    ),
    (
        FRESH,
        HOPELESS,
        None,
        None,
        Action.FAIL,
        None,
        "rank 0: exit code 3; a restart cannot cure it: SyntaxError: invalid syntax",
    ),
    (FRESH, failed(), None, None, Action.RESTART, Cause.FAILURE, "the group is FAILED; restart 1 of 1"),
    (
        FRESH,
        RunResult(WorkerState.UNKNOWN),
        None,
        None,
        Action.RESTART,
        Cause.FAILURE,
        "the group is UNKNOWN; restart 1 of 1",
    ),
    # a shared budget: who ended the round, and whether that is forgiven, is the handler's business
    (SHARED, RUNS, None, COME, Action.RESTART, Cause.MEMBERSHIP, "2 more node(s) want to take part"),
    (SHARED, RUNS, None, LOST, Action.RESTART, Cause.FAILURE, "rank 9 on node2: killed by SIGKILL"),
    (SHARED, BROKEN, None, None, Action.RESTART, Cause.FAILURE, "rank 0: exit code 3"),
    (SHARED, HOPELESS, None, None, Action.RESTART, Cause.FAILURE, "rank 0: exit code 3"),
    (SHARED, BROKEN, None, LOST, Action.RESTART, Cause.FAILURE, "rank 9 on node2: killed by SIGKILL"),
    (SHARED, BROKEN, None, COME, Action.RESTART, Cause.MEMBERSHIP, "2 more node(s) want to take part"),
    # the store is out of reach
    (SHARED, RUNS, None, FENCED, Action.FENCE, None, "the store has not answered for 30 s"),
    (SHARED, BROKEN, None, FENCED, Action.FENCE, None, "the store has not answered for 30 s"),
    (SHARED, DONE, None, FENCED, Action.FENCE, None, "the store has not answered for 30 s"),
    (SHARED, RUNS, TERM, FENCED, Action.LEAVE, None, "received SIGTERM"),
    # the job is over
    (SHARED, RUNS, None, CLOSED, Action.YIELD, None, BY_NODE2 + "rank 9: exit code 1; all 3 restarts are used"),
    (SHARED, RUNS, None, CLOSED_BY_SOMEBODY, Action.YIELD, None, "the job was closed by another node: enough"),
    (SHARED, BROKEN, None, CLOSED, Action.FAIL, None, BY_NODE2 + "rank 9: exit code 1; all 3 restarts are used"),
    (SHARED, RUNS, None, WELL, Action.RETIRE, None, BY_NODE2 + "all workers succeeded"),
    (SHARED, BROKEN, None, WELL, Action.RETIRE, None, BY_NODE2 + "all workers succeeded"),
    (SHARED, DONE, None, CLOSED, Action.SUCCEED, None, "every worker succeeded"),
    (SHARED, RUNS, TERM, CLOSED, Action.LEAVE, None, "received SIGTERM"),
    # somebody wants this node to leave
    (SHARED, RUNS, None, DRAINED, Action.DEPART, None, "drained: somebody asked for it"),
    (SHARED, BROKEN, None, DRAINED, Action.DEPART, None, "drained: somebody asked for it"),
    (SHARED, DONE, None, DRAINED, Action.SUCCEED, None, "every worker succeeded"),
    (SHARED, RUNS, TERM, DRAINED, Action.LEAVE, None, "received SIGTERM"),
]


@pytest.mark.parametrize(("budget", "result", "signum", "verdict", "action", "cause", "reason"), TABLE)
def test_the_table(budget, result, signum, verdict, action, cause, reason):
    decision = supervise(budget, Observation(result, signum, verdict))
    assert (decision.action, decision.cause, decision.reason) == (action, cause, reason)


@pytest.mark.parametrize(("budget", "result", "signum", "verdict", "action", "cause", "reason"), TABLE)
def test_only_a_failure_that_is_forgiven_uses_the_budget(budget, result, signum, verdict, action, cause, reason):
    after = supervise(budget, Observation(result, signum, verdict)).budget
    assert after.failures - budget.failures == (1 if cause in (Cause.FAILURE, Cause.HANG) and not budget.shared else 0)
    assert after.membership_changes - budget.membership_changes == (1 if cause is Cause.MEMBERSHIP else 0)


def test_the_failure_that_came_first_decides_and_is_named():
    effect = failure(rank=0, caused_by=1, curable=False)
    cause = failure(rank=1)
    decision = supervise(FRESH, Observation(failed(effect, cause)))
    assert (decision.action, decision.reason) == (Action.RESTART, "rank 1: exit code 3; restart 1 of 1")


@pytest.mark.parametrize(("verdict", "certain"), [(None, False), (LOST, True), (COME, True)])
def test_whether_a_failure_is_forgiven_is_uncertain_until_the_handler_says_so(verdict, certain):
    assert supervise(SHARED, Observation(BROKEN, verdict=verdict)).certain is certain


def test_an_incurable_failure_without_last_words():
    decision = supervise(FRESH, Observation(failed(failure(curable=False))))
    assert decision.reason == "rank 0: exit code 3; a restart cannot cure it: the command cannot run"


moments = st.one_of(
    st.just(("runs", 0)),
    st.integers(1, 3).map(lambda waiting: ("runs", waiting)),
    st.just(("failed", 0)),
    st.just(("hopeless", 0)),
    st.just(("done", 0)),
    st.just(("signal", 0)),
)
RESULTS = {"runs": RUNS, "failed": BROKEN, "hopeless": HOPELESS, "done": DONE, "signal": RUNS}


def dumb_model(max_restarts, story):
    """How the run ends, after how many failures and membership changes: told by counting."""
    failures = changes = 0
    for what, waiting in story:
        if what == "signal":
            return Action.LEAVE, failures, changes
        if what == "done":
            return Action.SUCCEED, failures, changes
        if what == "hopeless":
            return Action.FAIL, failures, changes
        if what == "failed":
            if failures == max_restarts:
                return Action.FAIL, failures, changes
            failures += 1
        elif waiting:
            changes += 1
    return None, failures, changes


def supervised(max_restarts, story):
    budget = RestartBudget(max_restarts)
    for what, waiting in story:
        signum = signal.SIGTERM if what == "signal" else None
        decision = supervise(budget, Observation(RESULTS[what], signum, COME if waiting else None))
        budget = decision.budget
        if decision.action not in (Action.CONTINUE, Action.RESTART):
            return decision.action, budget.failures, budget.membership_changes
    return None, budget.failures, budget.membership_changes


@given(st.integers(0, 4), st.lists(moments, max_size=15))
def test_a_whole_run_ends_as_counting_says(max_restarts, story):
    assert supervised(max_restarts, story) == dumb_model(max_restarts, story)


@given(st.integers(0, 5), st.integers(0, 20))
def test_membership_changes_never_end_a_run(max_restarts, changes):
    story = [("runs", 1)] * changes
    assert supervised(max_restarts, story) == (None, 0, changes)

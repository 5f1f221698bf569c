"""The restart policy: its table, and a dumb model that counts failures in a loop."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.agent import RestartBudget, RunResult, WorkerState
from elastic_core.agent.supervise import Action, Cause, Observation, supervise
from elastic_core.errors import ProcessFailure


def failed(*failures):
    return RunResult(WorkerState.FAILED, failures={failure.global_rank: failure for failure in failures})


def failure(rank=0, **fields):
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=3, global_rank=rank, reason="exit code 3", **fields)


RUNS = RunResult(WorkerState.HEALTHY)
DONE = RunResult(WorkerState.SUCCEEDED)
BROKEN = failed(failure())
HOPELESS = failed(failure(curable=False, stderr_tail=("x", "SyntaxError: invalid syntax")))
FRESH = RestartBudget(1)
SPENT = RestartBudget(1, failures=1)
TERM = signal.SIGTERM

TABLE = [
    # budget, result, signal, waiting -> action, cause, reason
    (FRESH, RUNS, None, 0, Action.CONTINUE, None, "workers run"),
    (FRESH, RUNS, None, 2, Action.RESTART, Cause.MEMBERSHIP, "2 more node(s) want to take part"),
    (SPENT, RUNS, None, 2, Action.RESTART, Cause.MEMBERSHIP, "2 more node(s) want to take part"),
    (FRESH, RUNS, TERM, 0, Action.LEAVE, None, "received SIGTERM"),
    (FRESH, RUNS, TERM, 2, Action.LEAVE, None, "received SIGTERM"),
    (FRESH, RunResult(WorkerState.UNHEALTHY), None, 0, Action.CONTINUE, None, "workers run"),
    (FRESH, DONE, None, 0, Action.SUCCEED, None, "every worker succeeded"),
    (FRESH, DONE, None, 2, Action.SUCCEED, None, "every worker succeeded"),
    (FRESH, DONE, TERM, 0, Action.LEAVE, None, "received SIGTERM"),
    (FRESH, BROKEN, None, 0, Action.RESTART, Cause.FAILURE, "rank 0: exit code 3; restart 1 of 1"),
    (FRESH, BROKEN, None, 2, Action.RESTART, Cause.FAILURE, "rank 0: exit code 3; restart 1 of 1"),
    (FRESH, BROKEN, TERM, 0, Action.LEAVE, None, "received SIGTERM"),
    (SPENT, BROKEN, None, 0, Action.FAIL, None, "rank 0: exit code 3; all 1 restarts are used (--max-restarts)"),
    (
        RestartBudget(0),
        BROKEN,
        None,
        0,
        Action.FAIL,
        None,
        "rank 0: exit code 3; no restart is allowed (--max-restarts=0)",
    ),
    (
        FRESH,
        HOPELESS,
        None,
        0,
        Action.FAIL,
        None,
        "rank 0: exit code 3; a restart cannot cure it: SyntaxError: invalid syntax",
    ),
    (FRESH, failed(), None, 0, Action.RESTART, Cause.FAILURE, "the group is FAILED; restart 1 of 1"),
    (
        FRESH,
        RunResult(WorkerState.UNKNOWN),
        None,
        0,
        Action.RESTART,
        Cause.FAILURE,
        "the group is UNKNOWN; restart 1 of 1",
    ),
]


@pytest.mark.parametrize(("budget", "result", "signum", "waiting", "action", "cause", "reason"), TABLE)
def test_the_table(budget, result, signum, waiting, action, cause, reason):
    decision = supervise(budget, Observation(result, signum, waiting))
    assert (decision.action, decision.cause, decision.reason) == (action, cause, reason)


@pytest.mark.parametrize(("budget", "result", "signum", "waiting", "action", "cause", "reason"), TABLE)
def test_only_a_failure_that_is_forgiven_uses_the_budget(budget, result, signum, waiting, action, cause, reason):
    after = supervise(budget, Observation(result, signum, waiting)).budget
    assert after.failures - budget.failures == (1 if cause is Cause.FAILURE else 0)
    assert after.membership_changes - budget.membership_changes == (1 if cause is Cause.MEMBERSHIP else 0)


def test_the_failure_that_came_first_decides_and_is_named():
    effect = failure(rank=0, caused_by=1, curable=False)
    cause = failure(rank=1)
    decision = supervise(FRESH, Observation(failed(effect, cause)))
    assert (decision.action, decision.reason) == (Action.RESTART, "rank 1: exit code 3; restart 1 of 1")


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
        decision = supervise(budget, Observation(RESULTS[what], signum, waiting))
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

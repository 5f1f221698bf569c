"""The exit barrier's table."""

from __future__ import annotations

import signal

import pytest

from elastic_core.agent import RestartBudget, RunResult, WorkerState
from elastic_core.agent.barrier import await_others
from elastic_core.agent.supervise import Action, Cause, Observation
from elastic_core.clock import Instant
from elastic_core.interfaces.handler import Outcome, Verdict

DONE = RunResult(WorkerState.SUCCEEDED)
BUDGET = RestartBudget(3, failures=2, shared=True)
TERM = signal.SIGTERM
WELL = Verdict(Outcome.CLOSED, "all of them", succeeded=True, by="node1")
BADLY = Verdict(Outcome.CLOSED, "rank 1: exit code 1", by="node1")
FAILED = Verdict(Outcome.RESTART, "rank 1: exit code 1", failed=True)
CAME = Verdict(Outcome.RESTART, "node5 has come")
FENCED = Verdict(Outcome.FENCED, "no answer for 30 s")
DRAINED = Verdict(Outcome.DRAINED, "somebody asked")
DONE_HERE = "every worker succeeded"

TABLE = [
    # signal, verdict, now -> action, cause, reason
    (None, None, 9.0, Action.CONTINUE, None, DONE_HERE),
    (None, None, 10.0, Action.DEPART, None, f"{DONE_HERE}; those of others have not in time (exit barrier)"),
    (TERM, None, 9.0, Action.LEAVE, None, "received SIGTERM"),
    (TERM, WELL, 9.0, Action.LEAVE, None, "received SIGTERM"),
    (None, WELL, 9.0, Action.RETIRE, None, f"{DONE_HERE}; the job was closed by node1: all of them"),
    (None, WELL, 11.0, Action.RETIRE, None, f"{DONE_HERE}; the job was closed by node1: all of them"),
    (
        None,
        BADLY,
        9.0,
        Action.YIELD,
        None,
        "the job was closed by node1: rank 1: exit code 1; the workers of this node had succeeded",
    ),
    (None, FAILED, 9.0, Action.RESTART, Cause.FAILURE, "rank 1: exit code 1"),
    (None, FAILED, 11.0, Action.RESTART, Cause.FAILURE, "rank 1: exit code 1"),
    (None, CAME, 9.0, Action.RESTART, Cause.MEMBERSHIP, "node5 has come"),
    (None, FENCED, 9.0, Action.RETIRE, None, f"{DONE_HERE}; not waiting for those of others: no answer for 30 s"),
    (None, DRAINED, 9.0, Action.DEPART, None, f"{DONE_HERE}; drained: somebody asked"),
]


@pytest.mark.parametrize(("signum", "verdict", "now", "action", "cause", "reason"), TABLE)
def test_the_table(signum, verdict, now, action, cause, reason):
    decision = await_others(BUDGET, Observation(DONE, signum, verdict), Instant(now), Instant(10.0))
    assert (decision.action, decision.cause, decision.reason) == (action, cause, reason)
    assert decision.budget.failures == BUDGET.failures

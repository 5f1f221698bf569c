"""The exit barrier's table."""

from __future__ import annotations

import signal

import pytest

from elastic_core.agent import RestartBudget, RunResult, WorkerState
from elastic_core.agent.supervise import Observation, RestartCause, await_others
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
CLOSED_HERE = f"{DONE_HERE}; the job was closed by node1: all of them"
FAILED_THERE = "the job was closed by node1: rank 1: exit code 1; the workers of this node had succeeded"
FAILURE, MEMBERSHIP = RestartCause.FAILURE, RestartCause.MEMBERSHIP
TOO_LATE = f"{DONE_HERE}; those of others have not in time (exit barrier)"
HOSTING = "the store of the others is in this process, and their workers run"

TABLE = [
    # signal, verdict, now -> orders, cause, reason
    (None, None, 9.0, "", None, DONE_HERE),
    (TERM, None, 9.0, "leave", None, "received SIGTERM"),
    (TERM, None, 11.0, "leave", None, "received SIGTERM"),
    (TERM, WELL, 9.0, "leave", None, "received SIGTERM"),
    (None, WELL, 9.0, "retire", None, CLOSED_HERE),
    (None, WELL, 11.0, "retire", None, CLOSED_HERE),
    (None, BADLY, 9.0, "yield", None, FAILED_THERE),
    (None, BADLY, 11.0, "yield", None, FAILED_THERE),
    (None, FAILED, 9.0, "join start", FAILURE, "rank 1: exit code 1"),
    (None, FAILED, 11.0, "join start", FAILURE, "rank 1: exit code 1"),
    (None, CAME, 9.0, "join start", MEMBERSHIP, "node5 has come"),
    (None, FENCED, 9.0, "retire", None, f"{DONE_HERE}; not waiting for those of others: no answer for 30 s"),
    (None, FENCED, 11.0, "retire", None, f"{DONE_HERE}; not waiting for those of others: no answer for 30 s"),
    (None, DRAINED, 9.0, "depart retire", None, f"{DONE_HERE}; drained: somebody asked"),
    (None, DRAINED, 11.0, "depart retire", None, f"{DONE_HERE}; drained: somebody asked"),
]
COLUMNS = ("signum", "verdict", "now", "orders", "cause", "reason")


@pytest.mark.parametrize("hosts_store", [False, True])
@pytest.mark.parametrize(COLUMNS, TABLE)
def test_the_table(signum, verdict, now, orders, cause, reason, hosts_store):
    decision = await_others(BUDGET, Observation(DONE, signum, verdict), Instant(now), Instant(10.0), hosts_store)
    assert (" ".join(order.value for order in decision.orders), decision.cause, decision.reason) == (
        orders,
        cause,
        reason,
    )
    assert decision.budget.failures == BUDGET.failures


@pytest.mark.parametrize("now", [10.0, 11.0])
@pytest.mark.parametrize(("hosts_store", "orders", "reason"), [(False, "depart retire", TOO_LATE), (True, "", HOSTING)])
def test_when_the_time_is_over_who_hosts_the_store_stays(now, hosts_store, orders, reason):
    decision = await_others(BUDGET, Observation(DONE), Instant(now), Instant(10.0), hosts_store)
    assert (" ".join(order.value for order in decision.orders), decision.reason) == (orders, reason)

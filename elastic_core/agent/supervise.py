"""What to do about a worker group: the whole restart policy, one pure function."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.agent.state import WorkerState

if TYPE_CHECKING:
    import signal

    from elastic_core.agent.budget import RestartBudget
    from elastic_core.agent.state import RunResult


class Action(enum.Enum):
    """What the agent does next."""

    CONTINUE = "continue"
    RESTART = "restart"
    SUCCEED = "succeed"
    FAIL = "fail"
    LEAVE = "leave"


class Cause(str, enum.Enum):
    """Why a group restarts. Only a failure uses the budget."""

    FAILURE = "failure"
    MEMBERSHIP = "membership"


@dataclass(frozen=True)
class Observation:
    """What the agent sees at one moment. `signum`: a signal to leave. `nodes_waiting`: nodes that want to join."""

    result: RunResult
    signum: signal.Signals | None = None
    nodes_waiting: int = 0


@dataclass(frozen=True)
class Decision:
    """The action, its reason in words, and the budget that is left after it. `cause` is set for a restart."""

    action: Action
    reason: str
    budget: RestartBudget
    cause: Cause | None = None


def supervise(budget: RestartBudget, seen: Observation) -> Decision:
    """A signal goes before everything; a finished group before a changed membership, for its work is done."""
    if seen.signum is not None:
        return Decision(Action.LEAVE, f"received {seen.signum.name}", budget)
    if seen.result.state is WorkerState.SUCCEEDED:
        return Decision(Action.SUCCEED, "every worker succeeded", budget)
    if not WorkerState.is_running(seen.result.state):
        return _after_failure(budget, seen.result)
    if seen.nodes_waiting > 0:
        reason = f"{seen.nodes_waiting} more node(s) want to take part"
        return Decision(Action.RESTART, reason, budget.after_membership_change(), Cause.MEMBERSHIP)
    return Decision(Action.CONTINUE, "workers run", budget)


def _after_failure(budget: RestartBudget, result: RunResult) -> Decision:
    first = next((f for f in result.failures.values() if f.caused_by is None), None)
    what = f"rank {first.global_rank}: {first.reason}" if first else f"the group is {result.state.value}"
    if first and not first.curable:
        last = first.stderr_tail[-1] if first.stderr_tail else "the command cannot run"
        return Decision(Action.FAIL, f"{what}; a restart cannot cure it: {last}", budget)
    if budget.exhausted:
        return Decision(Action.FAIL, f"{what}; {_used_up(budget)}", budget)
    after = budget.after_failure()
    return Decision(Action.RESTART, f"{what}; restart {after.failures} of {after.max_restarts}", after, Cause.FAILURE)


def _used_up(budget: RestartBudget) -> str:
    if budget.max_restarts == 0:
        return "no restart is allowed (--max-restarts=0)"
    return f"all {budget.max_restarts} restarts are used (--max-restarts)"

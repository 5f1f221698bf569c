"""What to do about a worker group: the whole restart policy, one pure function."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.agent.state import WorkerState
from elastic_core.interfaces.handler import Outcome

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping

    from elastic_core.agent.budget import RestartBudget
    from elastic_core.agent.state import RunResult
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.handler import Verdict


class Action(enum.Enum):
    """What the agent does next.

    CONTINUE: nothing. RESTART: stop the workers and take part in the next round. SUCCEED: tell the others, wait for
    them, end well. FAIL: end as a failed job. LEAVE: tell the others, stop the workers, end as a signal asked. DEPART:
    tell the others, stop the workers, end well. RETIRE: the same, with nobody to be told. YIELD: another node has
    closed the job, stop the workers. FENCE: the store is out of reach, stop the workers.
    """

    CONTINUE = "continue"
    RESTART = "restart"
    SUCCEED = "succeed"
    FAIL = "fail"
    LEAVE = "leave"
    DEPART = "depart"
    RETIRE = "retire"
    YIELD = "yield"
    FENCE = "fence"


class Cause(str, enum.Enum):
    """Why a group restarts. HANG: a worker had to be killed because it hung. It uses the budget as a failure does, a
    change of the membership does not."""

    FAILURE = "failure"
    HANG = "hang"
    MEMBERSHIP = "membership"


@dataclass(frozen=True)
class Observation:
    """What the agent sees at one moment. `signum`: a signal to leave. `verdict`: what has become of the round."""

    result: RunResult
    signum: signal.Signals | None = None
    verdict: Verdict | None = None

    def told(self, outcome: Outcome) -> Verdict | None:
        """The verdict, if it has this outcome."""
        return self.verdict if self.verdict and self.verdict.outcome is outcome else None


@dataclass(frozen=True)
class Decision:
    """The action, its reason in words, and the budget that is left after it.

    `cause` is set for a restart. `certain` is false when the budget is shared and may turn out to be used up.
    """

    action: Action
    reason: str
    budget: RestartBudget
    cause: Cause | None = None
    certain: bool = True


def supervise(budget: RestartBudget, seen: Observation) -> Decision:
    """A signal goes before everything; being cut off before what the cut-off workers do; a finished group before what
    others say of the round, for its work is done; the end of the job or of this node's part in it before the failures
    that follow from it; and a failure before a change of the round, which a restart will bring anyway."""
    state = seen.result.state
    if seen.signum is not None:
        return Decision(Action.LEAVE, f"received {seen.signum.name}", budget)
    if verdict := seen.told(Outcome.FENCED):
        return Decision(Action.FENCE, verdict.reason, budget)
    if state is WorkerState.SUCCEEDED:
        return Decision(Action.SUCCEED, "every worker succeeded", budget)
    if verdict := seen.told(Outcome.CLOSED):
        return _after_close(budget, seen.result, verdict)
    if verdict := seen.told(Outcome.DRAINED):
        return Decision(Action.DEPART, f"drained: {verdict.reason}", budget)
    if not WorkerState.is_running(state):
        return _after_failure(budget, seen)
    if verdict := seen.told(Outcome.RESTART):
        return after_round(budget, verdict)
    return Decision(Action.CONTINUE, "workers run", budget)


def after_round(budget: RestartBudget, verdict: Verdict) -> Decision:
    """The round has ended, and the next one will be without a failure of ours."""
    if verdict.failed:
        return Decision(Action.RESTART, verdict.reason, budget, _cause(verdict.failures))
    return Decision(Action.RESTART, verdict.reason, budget.after_membership_change(), Cause.MEMBERSHIP)


def _cause(failures: Mapping[int, ProcessFailure]) -> Cause:
    first = _first(failures)
    return Cause.HANG if first and first.hung else Cause.FAILURE


def _first(failures: Mapping[int, ProcessFailure]) -> ProcessFailure | None:
    return next((failure for failure in failures.values() if failure.caused_by is None), None)


def closed(verdict: Verdict) -> str:
    """By whom, and why, in words."""
    return f"the job was closed by {verdict.by or 'another node'}: {verdict.reason}"


def _after_close(budget: RestartBudget, result: RunResult, verdict: Verdict) -> Decision:
    if verdict.succeeded:
        return Decision(Action.RETIRE, closed(verdict), budget)
    failed = bool(result.failures) or not WorkerState.is_running(result.state)
    return Decision(Action.FAIL if failed else Action.YIELD, closed(verdict), budget)


def _after_failure(budget: RestartBudget, seen: Observation) -> Decision:
    first = _first(seen.result.failures)
    what = f"rank {first.global_rank}: {first.reason}" if first else f"the group is {seen.result.state.value}"
    if budget.shared:
        verdict = seen.told(Outcome.RESTART)
        return after_round(budget, verdict) if verdict else _to_be_judged(budget, what, _cause(seen.result.failures))
    if first and not first.curable:
        last = first.stderr_tail[-1] if first.stderr_tail else "the command cannot run"
        return Decision(Action.FAIL, f"{what}; a restart cannot cure it: {last}", budget)
    if budget.exhausted:
        return Decision(Action.FAIL, f"{what}; {_used_up(budget)}", budget)
    after = budget.after_failure()
    reason = f"{what}; restart {after.failures} of {after.max_restarts}"
    return Decision(Action.RESTART, reason, after, _cause(seen.result.failures))


def _to_be_judged(budget: RestartBudget, what: str, cause: Cause) -> Decision:
    """Take part again; whether the failure is forgiven is the job's decision, and the next rendezvous tells."""
    return Decision(Action.RESTART, what, budget, cause, certain=False)


def _used_up(budget: RestartBudget) -> str:
    if budget.max_restarts == 0:
        return "no restart is allowed (--max-restarts=0)"
    return f"all {budget.max_restarts} restarts are used (--max-restarts)"

"""The agent's policy, in two functions without side effects. `supervise` decides what to do about a worker group.
`await_others` decides what to do in the exit barrier, after the group has succeeded. This module also determines which
failure came first, on this node and in the whole job.

Both functions return orders, which the agent performs once and in sequence before it observes again.

`supervise` is called twice for a group that has failed. The first time, it orders the agent to report the failure and
to stop the group. The report comes first, because stopping takes time, and the peers of a lost worker hang until they
are notified. The second time, when all failures are known, `supervise` decides how to continue."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.agent.interface import WorkerState
from elastic_core.interfaces.handler import Outcome, Verdict, no_restart_left

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.agent.interface import RunResult
    from elastic_core.clock import Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.node import Round

_DONE = "every worker succeeded"


class Order(enum.Enum):
    """One action for the agent to perform. The orders from SUCCEED on end the run, or may end it."""

    REPORT = "report"  # report this node's failures to the other nodes, with everything that is known so far
    DEPART = "depart"  # notify the other nodes that this node is leaving
    STOP = "stop"  # stop the workers
    COLLECT = "collect"  # after success, end the processes that the workers left behind, and read output and values
    JOIN = "join"  # join the next round and start its workers
    SUCCEED = "succeed"  # notify the other nodes, wait for them, and end successfully
    RETIRE = "retire"  # end successfully
    FAIL = "fail"  # end as a failed job
    YIELD = "yield"  # end because another node has closed the job or because this node is drained
    LEAVE = "leave"  # notify the other nodes, stop the workers, and end, because a signal or a notice requires it


class RestartCause(str, enum.Enum):
    """Why a group restarts. Only FAILURE and HANG use up the budget."""

    FAILURE = "failure"  # a worker failed
    HANG = "hang"  # a worker was killed because it hung
    LOST = "node lost"
    MEMBERSHIP = "membership"  # the membership changed for another reason


@dataclass(frozen=True)
class RestartBudget:
    """A budget of restarts: `max_restarts` failures are forgiven, and the next failure is final. `failures` is
    TORCHELASTIC_RESTART_COUNT.

    If `shared` is set, the handler counts the failures of all nodes and decides whether each failure is forgiven.
    `failures` is then the count of the current round."""

    max_restarts: int
    failures: int = 0
    shared: bool = False


@dataclass(frozen=True)
class Observation:
    """The agent's knowledge at one moment.

    Args:
        result: the state of the workers.
        request: why the agent was asked to leave, or an empty string if it was not.
        verdict: the handler's verdict, if the round is over.
        complete: whether all workers have ended and `result` contains everything that can be known about them.
    """

    result: RunResult
    request: str = ""
    verdict: Verdict | None = None
    complete: bool = False

    @property
    def running(self) -> bool:
        """Whether workers are running."""
        return WorkerState.is_running(self.result.state) and not self.complete

    @property
    def failed(self) -> bool:
        """Whether the group has failed, or is in a state from which it cannot continue."""
        return self.result.state not in (WorkerState.HEALTHY, WorkerState.SUCCEEDED)

    @property
    def reported(self) -> Mapping[int, ProcessFailure]:
        """The job's failures according to the verdict."""
        return self.verdict.failures if self.verdict else {}

    @property
    def failures(self) -> dict[int, ProcessFailure]:
        """The failures of this node and of the whole job."""
        return together(self.result.failures, self.reported)

    def found(self, outcome: Outcome) -> Verdict | None:
        """Return the verdict if it has this outcome."""
        return self.verdict if self.verdict and self.verdict.outcome is outcome else None


@dataclass(frozen=True)
class Decision:
    """The orders for the agent, and the reason for them. Without orders, the agent waits.

    Attributes:
        cause: why the group restarts, if it does.
        certain: false if the shared budget may be used up, or if only the next round will show the cause (see
            `judged`).
        orderly: whether the workers may save first, because they are stopped on request and not after a failure.
    """

    orders: tuple[Order, ...]
    reason: str
    cause: RestartCause | None = None
    certain: bool = True
    orderly: bool = False

    @property
    def uses_budget(self) -> bool:
        return self.cause in (RestartCause.FAILURE, RestartCause.HANG)


def supervise(budget: RestartBudget, seen: Observation) -> Decision:
    """Decide what to do while a group runs or after it has ended.

    A request to leave comes first, followed by a failure that has not been reported yet. Success takes precedence over
    the round's verdict, because the group's work is done. A verdict that the job has ended, or that this node has been
    drained or cut off, takes precedence over failures, because these may be its consequences. A failure takes
    precedence over a membership change, because a restart adopts the change anyway."""
    if seen.request:
        return Decision((Order.LEAVE,), seen.request, orderly=_workers_may_save(seen.verdict))
    if seen.failed and not seen.complete:
        return Decision((Order.REPORT, Order.STOP, Order.REPORT), _what_failed(seen.result))
    if seen.result.state is WorkerState.SUCCEEDED:
        return Decision((Order.SUCCEED if seen.complete else Order.COLLECT,), _DONE)
    if verdict := seen.found(Outcome.CLOSED):
        return _after_close(seen, verdict)
    if verdict := seen.found(Outcome.DRAINED):
        orders = (Order.DEPART, *_stop(seen), Order.YIELD)
        return Decision(orders, f"drained: {verdict.reason}", orderly=_workers_may_save(verdict))
    if verdict := seen.found(Outcome.FENCED):
        return _after_round(seen, verdict)
    if seen.failed:
        return _after_failure(budget, seen)
    if verdict := seen.found(Outcome.RESTART):
        return _after_round(seen, verdict)
    return Decision((), "workers run")


def await_others(seen: Observation, now: Instant, until: Instant, hosts_store: bool = False) -> Decision:
    """Decide what to do after this node's workers have succeeded, while other nodes' workers are still running.

    The node waits, so that it can rejoin if another node fails. The wait ends in failure only if the whole job fails,
    because the node's own work is done. The node stops waiting at `until`, unless it hosts the other nodes' store."""
    if seen.request:
        return Decision((Order.LEAVE,), seen.request)
    if verdict := seen.found(Outcome.CLOSED):
        if verdict.succeeded:
            return Decision((Order.RETIRE,), f"{_DONE}; {closed(verdict)}")
        return Decision((Order.YIELD,), f"{closed(verdict)}; this node's workers had succeeded")
    if verdict := seen.found(Outcome.RESTART):
        return _after_round(seen, verdict)
    if verdict := seen.found(Outcome.FENCED):
        return Decision((Order.RETIRE,), f"{_DONE}; not waiting for other nodes' workers: {verdict.reason}")
    if verdict := seen.found(Outcome.DRAINED):
        return Decision((Order.DEPART, Order.RETIRE), f"{_DONE}; drained: {verdict.reason}")
    if now < until:
        return Decision((), _DONE)
    if hosts_store:
        return Decision((), "this process hosts the store for other nodes, whose workers are still running")
    reason = f"{_DONE}; other nodes' workers did not finish in time (exit barrier)"
    return Decision((Order.DEPART, Order.RETIRE), reason)


def closed(verdict: Verdict) -> str:
    """Return a clause that states which node closed the job, and why."""
    return f"the job was closed by {verdict.by or 'another node'}: {verdict.reason}"


def _stop(seen: Observation) -> tuple[Order, ...]:
    return (Order.STOP,) if seen.running else ()


def _after_round(seen: Observation, verdict: Verdict) -> Decision:
    """Decide what to do after the round is over. The cause is the event that ended the round, not a local failure."""
    orders, cause = (*_stop(seen), Order.JOIN), _cause_of(verdict)
    may_save = _workers_may_save(verdict)
    return Decision(orders, verdict.reason, cause, certain=verdict.judged, orderly=may_save)


def _workers_may_save(verdict: Verdict | None) -> bool:
    """Return whether the workers can save together. They cannot if some of the round's workers have already ended."""
    if verdict is None or verdict.outcome is Outcome.DRAINED:
        return True
    return verdict.outcome is Outcome.RESTART and _cause_of(verdict) is RestartCause.MEMBERSHIP


def judged(decision: Decision, ended: Verdict | None) -> Decision:
    """Return the decision with the actual reason and cause, if it is now known how the round ended."""
    return replace(decision, reason=ended.reason, cause=_cause_of(ended)) if ended else decision


def cause_of_end(number: int, restart_count: int, formed: Round) -> Verdict | None:
    """Return how this node's round `number` ended, or None if that is unknown. `formed` is the node's next round.

    If rounds have formed without this node in between and no failure has been counted since, the other nodes considered
    this node lost. Its workers then failed because of that loss."""
    if formed.number == number + 1:
        return formed.ended
    if formed.number <= number or formed.restart_count != restart_count:
        return None
    gone = f"round {number + 1} formed without this node, which the other nodes considered lost"
    return Verdict(Outcome.RESTART, gone, lost=True)


def _after_close(seen: Observation, verdict: Verdict) -> Decision:
    """Decide to end without success, because this node's workers have not succeeded."""
    but = "; this node's workers had not succeeded" if verdict.succeeded else ""
    return Decision((*_stop(seen), Order.FAIL if seen.failed else Order.YIELD), closed(verdict) + but)


def _after_failure(budget: RestartBudget, seen: Observation) -> Decision:
    what, cause = _what_failed(seen.result), _cause(seen.result.failures)
    if budget.shared:
        if verdict := seen.found(Outcome.RESTART):
            return _after_round(seen, verdict)
        # The handler decides whether the failure is forgiven, and the next rendezvous shows its decision.
        return Decision((Order.JOIN,), what, cause, certain=False)
    first = first_of(seen.result.failures)
    if first and not first.curable:
        last = first.stderr_tail[-1] if first.stderr_tail else "the command cannot run"
        return Decision((Order.FAIL,), f"{what}; a restart would not help: {last}")
    if budget.failures >= budget.max_restarts:
        return Decision((Order.FAIL,), f"{what}; {no_restart_left(budget.max_restarts)}")
    return Decision((Order.JOIN,), f"{what}; restart {budget.failures + 1} of {budget.max_restarts}", cause)


def _what_failed(result: RunResult) -> str:
    first = first_of(result.failures)
    return f"rank {first.global_rank}: {first.reason}" if first else f"the group is {result.state.value}"


def _cause_of(verdict: Verdict) -> RestartCause:
    if verdict.failed:
        return _cause(verdict.failures)
    return RestartCause.LOST if verdict.lost else RestartCause.MEMBERSHIP


def _cause(failures: Mapping[int, ProcessFailure]) -> RestartCause:
    first = first_of(failures)
    return RestartCause.HANG if first and first.hung else RestartCause.FAILURE


def first_of(failures: Mapping[int, ProcessFailure]) -> ProcessFailure | None:
    """Return the failure that no other failure caused, or None."""
    return next((failure for failure in failures.values() if failure.caused_by is None), None)


def together(own: Mapping[int, ProcessFailure], job: Mapping[int, ProcessFailure]) -> dict[int, ProcessFailure]:
    """Return the failures of this node and of the job, by global rank.

    The first failure in `job` is considered the cause of all others, because timestamps from two machines cannot be
    compared. This node's own records replace the job's copies, because they have more details."""
    first = next((rank for rank, failure in job.items() if failure.caused_by is None), None)
    if first is None:
        return {**job, **own}
    return {
        rank: replace(failure, caused_by=None if rank == first else first) for rank, failure in {**job, **own}.items()
    }

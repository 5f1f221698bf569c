"""The exit barrier: what a node does whose workers have succeeded, while those of others still run. Pure.

It waits, so that the host of the store leaves last and that it can take part again when another node fails. Its own
work is done: no end of the wait makes a failure of that, except that the job as a whole failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.agent.supervise import Action, Decision, after_round, closed
from elastic_core.interfaces.handler import Outcome

if TYPE_CHECKING:
    from elastic_core.agent.budget import RestartBudget
    from elastic_core.agent.supervise import Observation
    from elastic_core.clock import Instant

_DONE = "every worker succeeded"


def await_others(budget: RestartBudget, seen: Observation, now: Instant, until: Instant) -> Decision:
    """CONTINUE is to wait on. `until`: when the node stops waiting."""
    if seen.signum is not None:
        return Decision(Action.LEAVE, f"received {seen.signum.name}", budget)
    if verdict := seen.told(Outcome.CLOSED):
        if verdict.succeeded:
            return Decision(Action.RETIRE, f"{_DONE}; {closed(verdict)}", budget)
        return Decision(Action.YIELD, f"{closed(verdict)}; the workers of this node had succeeded", budget)
    if verdict := seen.told(Outcome.RESTART):
        return after_round(budget, verdict)
    if verdict := seen.told(Outcome.FENCED):
        return Decision(Action.RETIRE, f"{_DONE}; not waiting for those of others: {verdict.reason}", budget)
    if verdict := seen.told(Outcome.DRAINED):
        return Decision(Action.DEPART, f"{_DONE}; drained: {verdict.reason}", budget)
    if now >= until:
        return Decision(Action.DEPART, f"{_DONE}; those of others have not in time (exit barrier)", budget)
    return Decision(Action.CONTINUE, _DONE, budget)

"""What the agent tells of its run: each fact as a line of the log and to the observer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.interfaces.observer import AgentFinished, RestartDecided, RoundFormed, WorkerFailed, WorkersStarted
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.agent.budget import RestartBudget
    from elastic_core.agent.spec import WorkerGroup
    from elastic_core.agent.state import WorkerState
    from elastic_core.agent.supervise import Decision
    from elastic_core.clock import Duration
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.node import Round
    from elastic_core.interfaces.observer import Observer

_PIDS_IN_A_LINE = 8


class Teller:
    """Tells the facts of one run, in the agent's thread."""

    def __init__(self, run_id: str, observer: Observer) -> None:
        self._run_id = run_id
        self._observer = observer

    def round_formed(self, group: WorkerGroup, formed: Round, seconds: Duration) -> None:
        """`seconds`: how long it took."""
        self._observer.round_formed(
            RoundFormed(self._run_id, group.round, group.group_rank, group.group_world_size, seconds)
        )
        get_logger().info(
            "round formed",
            round=group.round,
            nodes=group.group_world_size,
            node_rank=group.group_rank,
            store=f"{group.master_addr}:{group.master_port}",
            **({"reason": formed.reason} if formed.reason else {}),
        )

    def workers_started(self, round_: int, pids: Mapping[int, int]) -> None:
        get_logger().info("workers started", round=round_, workers=len(pids), pids=_few(list(pids.values())))
        self._observer.workers_started(WorkersStarted(self._run_id, round_, pids))

    def failures(self, failures: Mapping[int, ProcessFailure]) -> None:
        for failure in failures.values():
            get_logger().error(
                "worker failed", rank=failure.global_rank, pid=failure.pid, round=failure.round, reason=failure.reason
            )
            self._observer.worker_failed(WorkerFailed(self._run_id, failure))

    def restart(self, round_: int, decision: Decision, budget: RestartBudget, restart_count: int) -> None:
        """`restart_count`: failures that will have been forgiven."""
        cause = decision.cause.value if decision.cause else ""
        get_logger().warning("restart decided", cause=cause, reason=decision.reason)
        self._observer.restart_decided(
            RestartDecided(self._run_id, round_, cause, decision.reason, restart_count, budget.max_restarts)
        )

    def finished(self, state: WorkerState, reason: str, restarts: int) -> None:
        get_logger().info("agent finished", state=state.value, reason=reason, restarts=restarts)
        self._observer.agent_finished(AgentFinished(self._run_id, state.value, reason, restarts))


def _few(pids: list[int]) -> list[int] | str:
    """All process ids while a line can hold them; with many workers the first and the last."""
    return pids if len(pids) <= _PIDS_IN_A_LINE else f"{pids[0]} to {pids[-1]}"

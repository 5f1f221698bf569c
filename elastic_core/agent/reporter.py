"""Reports a run's events to the observer and to the log, and logs the progress of long waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.agent.interface import WorkerState
from elastic_core.clock import later
from elastic_core.errors import DrainedError, ElasticError, SignalException
from elastic_core.interfaces.health import AgentPhase
from elastic_core.interfaces.observer import (
    AgentFinished,
    PhaseChanged,
    RestartDecided,
    RoundFormed,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
)
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.agent.interface import WorkerGroup
    from elastic_core.agent.supervise import Decision, RestartBudget
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.health import StopStatus
    from elastic_core.interfaces.node import Round
    from elastic_core.interfaces.observer import Observer
    from elastic_core.interfaces.workers import WorkerExit

FIRST_AFTER: Duration = 3.0  # seconds from the beginning of a wait to the first line
THEN_EVERY: Duration = 5.0
_PIDS_IN_A_LINE = 8


class Reporter:
    """Reports the events of one run. Only the agent's thread may use it."""

    def __init__(self, run_id: str, observer: Observer, clock: Clock) -> None:
        self._run_id = run_id
        self._tell = observer
        self._clock = clock
        self._phase: tuple[AgentPhase, str] | None = None

    def phase(self, phase: AgentPhase, reason: str = "", sign: Instant | None = None) -> None:
        """Report a phase, unless the same phase and reason were reported last. `sign` is when the first sign of the
        phase's cause appeared."""
        if self._phase != (phase, reason):
            self._phase = (phase, reason)
            self._tell(PhaseChanged(self._run_id, phase, reason, self._clock.now(), sign))

    def saving(self, stop: StopStatus) -> None:
        """Report which workers have saved before a stop."""
        if self._phase:
            self._tell(PhaseChanged(self._run_id, *self._phase, self._clock.now(), stop=stop))

    def round_formed(self, group: WorkerGroup, formed: Round, seconds: Duration) -> None:
        """Report a new round, which took `seconds` to form."""
        self._tell(RoundFormed(self._run_id, group.round, group.group_rank, group.group_world_size, seconds, formed))
        get_logger().info(
            "round formed",
            round=group.round,
            nodes=group.group_world_size,
            node_rank=group.group_rank,
            store=f"{group.master_addr}:{group.master_port}",
            **({"reason": formed.reason} if formed.reason else {}),
        )

    def workers_started(self, group: WorkerGroup, pids: Mapping[int, int]) -> None:
        get_logger().info("workers started", round=group.round, workers=len(pids), pids=_few(list(pids.values())))
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        self._tell(WorkersStarted(self._run_id, group.round, pids, ranks))

    def worker_exited(self, round_: int, ended: WorkerExit) -> None:
        get_logger().debug("worker exited", local_rank=ended.local_rank, pid=ended.pid, exitcode=ended.exitcode)
        self._tell(WorkerExited(self._run_id, round_, ended.local_rank, ended.exitcode, ended.obeyed))

    def failures(self, failures: Mapping[int, ProcessFailure]) -> None:
        for failure in failures.values():
            if not failure.hung:  # a hang was logged when the worker was killed
                get_logger().error(
                    "worker failed",
                    rank=failure.global_rank,
                    pid=failure.pid,
                    round=failure.round,
                    reason=failure.reason,
                )
            self._tell(WorkerFailed(self._run_id, failure))

    def hangs_elsewhere(self, job: Mapping[int, ProcessFailure], own: Mapping[int, ProcessFailure]) -> None:
        """Log the workers that hung on other nodes, with their stacks. The log is the only place for them, because a
        job that continues writes no failure report. Observers are notified only on the node whose worker hung."""
        for rank, failure in job.items():
            if failure.hung and rank not in own:
                fields = {"rank": rank, "node": failure.node, "reason": failure.reason, "stack": failure.stack}
                get_logger().error("worker hangs", **fields)

    def restart(self, round_: int, decision: Decision, after: RestartBudget) -> None:
        """Report a restart, and the budget after it."""
        cause, reason = decision.cause.value if decision.cause else "", decision.reason
        get_logger().warning("restart decided", cause=cause, reason=reason)
        self._tell(RestartDecided(self._run_id, round_, cause, reason, after.failures, after.max_restarts))

    def finished(self, state: WorkerState, reason: str, restarts: int) -> None:
        get_logger().info("agent finished", state=state.value, restarts=restarts, reason=reason)
        self._tell(AgentFinished(self._run_id, state.value, reason, restarts))
        self.phase(AgentPhase.FINISHED, reason)


def _few(pids: list[int]) -> list[int] | str:
    return pids if len(pids) <= _PIDS_IN_A_LINE else f"{pids[0]} to {pids[-1]}"


def state_after(error: BaseException) -> WorkerState:
    """Return the state of a run that ended with this error."""
    stopped = isinstance(error, (SignalException, DrainedError, KeyboardInterrupt))
    return WorkerState.STOPPED if stopped else WorkerState.FAILED


def error_in_words(error: BaseException) -> str:
    """Return the error as text for users."""
    if isinstance(error, (SignalException, ElasticError)):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted from the keyboard"
    return f"{type(error).__name__}: {error}"


class Progress:
    """Logs the progress of a wait that began at `begun`. `fields` maps the seconds waited to the line's fields."""

    def __init__(
        self, begun: Instant, waiting_for: str, fields: Callable[[int], Mapping[str, object]] | None = None
    ) -> None:
        self._begun = begun
        self._waiting_for = waiting_for
        self._fields = fields or (lambda seconds: {"seconds": seconds})
        self._next_at = later(begun, FIRST_AFTER)

    def look(self, now: Instant) -> Instant:
        """Log a line if one is due. Returns the time at which to call `look` again."""
        if now >= self._next_at:
            self._next_at = later(now, THEN_EVERY)
            fields = self._fields(round(now - self._begun))
            get_logger().info("still waiting", waiting_for=self._waiting_for, **fields)
        return self._next_at

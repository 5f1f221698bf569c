"""Observers that pass on what they are told: to several others, as events, as metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from elastic_core import events, metrics
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.interfaces.observer import (
        AgentFinished,
        Observer,
        PhaseChanged,
        RestartDecided,
        RoundFormed,
        WorkerExited,
        WorkerFailed,
        WorkersStarted,
    )

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Everyone:
    """Several observers as one, told in order. One that raises is logged, and the others are told all the same."""

    observers: Sequence[Observer]

    def round_formed(self, fact: RoundFormed) -> None:
        for observer in self.observers:
            _tell(observer.round_formed, fact)

    def workers_started(self, fact: WorkersStarted) -> None:
        for observer in self.observers:
            _tell(observer.workers_started, fact)

    def worker_exited(self, fact: WorkerExited) -> None:
        for observer in self.observers:
            _tell(observer.worker_exited, fact)

    def worker_failed(self, fact: WorkerFailed) -> None:
        for observer in self.observers:
            _tell(observer.worker_failed, fact)

    def restart_decided(self, fact: RestartDecided) -> None:
        for observer in self.observers:
            _tell(observer.restart_decided, fact)

    def agent_finished(self, fact: AgentFinished) -> None:
        for observer in self.observers:
            _tell(observer.agent_finished, fact)

    def phase_changed(self, fact: PhaseChanged) -> None:
        for observer in self.observers:
            _tell(observer.phase_changed, fact)


def _tell(tell: Callable[[Fact], None], fact: Fact) -> None:
    try:
        tell(fact)
    except Exception as error:  # noqa: BLE001 - whoever watches must not end what is watched
        get_logger().warning("observer failed", fact=type(fact).__name__, reason=str(error), exc_info=error)


@dataclass(frozen=True)
class EventRecorder:
    """An observer that records what happens as events (see `elastic_core.events`), but not the agent's phases and the
    exits of workers: other events tell what they mean. Raises ConfigurationError for an
    unknown destination with the first event; see `events.check_destination`."""

    destination: str

    def round_formed(self, fact: RoundFormed) -> None:
        self._record("round_formed", fact.as_dict())

    def workers_started(self, fact: WorkersStarted) -> None:
        self._record("workers_started", {"run_id": fact.run_id, "round": fact.round, "workers": len(fact.pids)})

    def worker_exited(self, fact: WorkerExited) -> None:
        pass

    def worker_failed(self, fact: WorkerFailed) -> None:
        failure = fact.failure
        self._record("worker_failed", {"run_id": fact.run_id, "rank": failure.global_rank, "reason": failure.reason})

    def restart_decided(self, fact: RestartDecided) -> None:
        self._record("restart_decided", asdict(fact))

    def agent_finished(self, fact: AgentFinished) -> None:
        self._record("agent_finished", asdict(fact))

    def phase_changed(self, fact: PhaseChanged) -> None:
        pass

    def _record(self, name: str, metadata: dict[str, events.MetadataValue]) -> None:
        events.record(events.Event(name, events.EventSource.AGENT, metadata=metadata), self.destination)


class MetricRecorder:
    """An observer that puts what it hears as metrics (see `elastic_core.metrics`), under the names by which users of
    torch's agent know them: `workers.<role>.<name>`. What torch's agent puts at every look at its workers, their state
    and the restarts that are left, comes when it changes."""

    def __init__(self, role: str, max_restarts: int) -> None:
        self._role = role
        self._max_restarts = max_restarts
        self._restarts = 0

    def round_formed(self, fact: RoundFormed) -> None:
        if fact.formed is not None:
            self._restarts = fact.formed.restart_count

    def workers_started(self, fact: WorkersStarted) -> None:
        self._put_state("healthy")

    def worker_exited(self, fact: WorkerExited) -> None:
        pass

    def worker_failed(self, fact: WorkerFailed) -> None:
        pass

    def restart_decided(self, fact: RestartDecided) -> None:
        self._restarts = fact.restart_count
        if fact.cause != "membership":
            self._put_state("failed")

    def agent_finished(self, fact: AgentFinished) -> None:
        self._restarts = fact.restart_count
        self._put_state(fact.state.lower())
        if fact.state in ("SUCCEEDED", "FAILED"):
            self._put_run(failed=fact.state == "FAILED")

    def phase_changed(self, fact: PhaseChanged) -> None:
        pass

    @property
    def _left(self) -> int:
        return max(0, self._max_restarts - self._restarts)

    def _put_state(self, state: str) -> None:
        self._put("remaining_restarts", self._left)
        self._put(state, 1)

    def _put_run(self, *, failed: bool) -> None:
        retried = self._restarts > 0
        self._put("flakiness", 100 if failed else int(100 - 100 * (self._left + 1) / (self._max_restarts + 1)))
        self._put("run_total", 1)
        self._put("run_success_with_retries", not failed and retried)
        self._put("run_success_no_retries", not failed and not retried)
        self._put("run_failed_with_retries", failed and retried)
        self._put("run_failed_no_retries", failed and not retried)

    def _put(self, name: str, value: int) -> None:
        metrics.put_metric(f"workers.{self._role}.{name}", int(value))

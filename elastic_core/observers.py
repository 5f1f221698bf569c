"""Observers that record an agent's facts as a history, as events and as metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from elastic_core import events, metrics
from elastic_core.interfaces.observer import (
    AgentFinished,
    PhaseChanged,
    RestartDecided,
    RoundFormed,
    WorkerFailed,
    WorkersStarted,
)
from elastic_core.log import tolerating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.health import StopStatus
    from elastic_core.interfaces.observer import Fact, Observer


@dataclass(frozen=True)
class CombinedObserver:
    """Passes each fact to several observers, in order. An exception in an observer is only logged."""

    observers: Sequence[Observer]

    def __call__(self, fact: Fact) -> None:
        for observer in self.observers:
            with tolerating(part="observer", fact=type(fact).__name__):
                observer(fact)


class History:
    """Collects the history of one run for the result file and the final report. The history contains all facts, in
    order, except worker exits, phases and recoveries. `stops` contains the last status of each stop that gave the
    workers time to save."""

    def __init__(self) -> None:
        self.rounds: list[RoundFormed] = []
        self.started: list[WorkersStarted] = []
        self.failures: list[ProcessFailure] = []
        self.restarts: list[RestartDecided] = []
        self.stops: list[StopStatus] = []
        self.finished: AgentFinished | None = None

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, RoundFormed):
            self.rounds.append(fact)
        elif isinstance(fact, WorkersStarted):
            self.started.append(fact)
        elif isinstance(fact, WorkerFailed):
            self.failures.append(fact.failure)
        elif isinstance(fact, RestartDecided):
            self.restarts.append(fact)
        elif isinstance(fact, PhaseChanged) and fact.stop is not None:
            self.stops = [*(stop for stop in self.stops if stop.round != fact.stop.round), fact.stop]
        elif isinstance(fact, AgentFinished):
            self.finished = fact

    @property
    def restarts_by_round(self) -> dict[int, int]:
        """The number of restarts before each round, by round number."""
        return {fact.round: fact.formed.restart_count for fact in self.rounds}

    def as_dict(self) -> dict[str, Any]:
        """Return the history as a dictionary for JSON."""
        return {
            "rounds": [fact.as_dict() for fact in self.rounds],
            "workers": [{"run_id": it.run_id, "round": it.round, "pids": dict(it.pids)} for it in self.started],
            "failures": [failure.as_dict() for failure in self.failures],
            "restarts": [asdict(fact) for fact in self.restarts],
            "stops": [asdict(stop) for stop in self.stops],
        }


@dataclass(frozen=True)
class EventRecorder:
    """Records the facts as events (see `elastic_core.events`). Worker exits, recoveries and most phase changes are not
    recorded. `destination` is the handler's name, for the log."""

    sink: events.EventHandler
    destination: str = ""

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, RoundFormed):
            self._record("round_formed", fact.as_dict())
        elif isinstance(fact, WorkersStarted):
            self._record("workers_started", {"run_id": fact.run_id, "round": fact.round, "workers": len(fact.pids)})
        elif isinstance(fact, WorkerFailed):
            rank, reason = fact.failure.global_rank, fact.failure.reason
            self._record("worker_failed", {"run_id": fact.run_id, "rank": rank, "reason": reason})
        elif isinstance(fact, RestartDecided):
            self._record("restart_decided", asdict(fact))
        elif isinstance(fact, PhaseChanged) and fact.stop is not None:
            saved, unsaved = (", ".join(map(str, ranks)) for ranks in (fact.stop.saved, fact.stop.unsaved))
            status = {**asdict(fact.stop), "saved": saved, "unsaved": unsaved}
            self._record("workers_saving", {"run_id": fact.run_id, "reason": fact.reason, **status})
        elif isinstance(fact, AgentFinished):
            self._record("agent_finished", asdict(fact))

    def _record(self, name: str, metadata: dict[str, events.EventMetadataValue]) -> None:
        events.hand(events.Event(name, events.EventSource.AGENT, metadata=metadata), self.sink, self.destination)


class MetricRecorder:
    """Records the facts as metrics (see `elastic_core.metrics`) with the same names as in torch,
    `workers.<role>.<name>`. Torch's agent records the workers' state and the remaining restarts whenever it polls the
    workers. This class records them only when they change."""

    def __init__(self, role: str, max_restarts: int) -> None:
        self._role = role
        self._max_restarts = max_restarts
        self._restarts = 0

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, RoundFormed):
            self._restarts = fact.formed.restart_count
        elif isinstance(fact, WorkersStarted):
            self._put_state("healthy")
        elif isinstance(fact, RestartDecided):
            self._restarts = fact.restart_count
            if fact.cause in ("failure", "hang"):
                self._put_state("failed")
        elif isinstance(fact, AgentFinished):
            self._restarts = fact.restart_count
            self._put_state(fact.state.lower())
            if fact.state in ("SUCCEEDED", "FAILED"):
                self._put_run(failed=fact.state == "FAILED")

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

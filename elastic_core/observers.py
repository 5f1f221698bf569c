"""Observers that pass on what they are told: to several others, or to an event handler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from elastic_core import events
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.interfaces.observer import (
        AgentFinished,
        Observer,
        RestartDecided,
        RoundFormed,
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

    def worker_failed(self, fact: WorkerFailed) -> None:
        for observer in self.observers:
            _tell(observer.worker_failed, fact)

    def restart_decided(self, fact: RestartDecided) -> None:
        for observer in self.observers:
            _tell(observer.restart_decided, fact)

    def agent_finished(self, fact: AgentFinished) -> None:
        for observer in self.observers:
            _tell(observer.agent_finished, fact)


def _tell(tell: Callable[[Fact], None], fact: Fact) -> None:
    try:
        tell(fact)
    except Exception as error:  # noqa: BLE001 - whoever watches must not end what is watched
        get_logger().warning("observer failed", fact=type(fact).__name__, reason=str(error), exc_info=error)


@dataclass(frozen=True)
class EventRecorder:
    """An observer that records each fact as an event (see `elastic_core.events`). Raises ConfigurationError for an
    unknown destination with the first event; see `events.check_destination`."""

    destination: str

    def round_formed(self, fact: RoundFormed) -> None:
        self._record("round_formed", asdict(fact))

    def workers_started(self, fact: WorkersStarted) -> None:
        self._record("workers_started", {"run_id": fact.run_id, "round": fact.round, "workers": len(fact.pids)})

    def worker_failed(self, fact: WorkerFailed) -> None:
        failure = fact.failure
        self._record("worker_failed", {"run_id": fact.run_id, "rank": failure.global_rank, "reason": failure.reason})

    def restart_decided(self, fact: RestartDecided) -> None:
        self._record("restart_decided", asdict(fact))

    def agent_finished(self, fact: AgentFinished) -> None:
        self._record("agent_finished", asdict(fact))

    def _record(self, name: str, metadata: dict[str, events.MetadataValue]) -> None:
        events.record(events.Event(name, events.EventSource.AGENT, metadata=metadata), self.destination)

"""An observer that keeps what it is told, in one list."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.interfaces.observer import (
        AgentFinished,
        RestartDecided,
        RoundFormed,
        WorkerFailed,
        WorkersStarted,
    )

    Fact = RoundFormed | WorkersStarted | WorkerFailed | RestartDecided | AgentFinished


class RecordingObserver:
    """See `interfaces.observer.Observer`. `facts` grows in the order of telling."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def round_formed(self, fact: RoundFormed) -> None:
        self.facts.append(fact)

    def workers_started(self, fact: WorkersStarted) -> None:
        self.facts.append(fact)

    def worker_failed(self, fact: WorkerFailed) -> None:
        self.facts.append(fact)

    def restart_decided(self, fact: RestartDecided) -> None:
        self.facts.append(fact)

    def agent_finished(self, fact: AgentFinished) -> None:
        self.facts.append(fact)

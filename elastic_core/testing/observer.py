"""An observer that keeps what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_core.interfaces.observer import (
        AgentFinished,
        PhaseChanged,
        RestartDecided,
        RoundFormed,
        WorkerExited,
        WorkerFailed,
        WorkersStarted,
    )

    Fact = RoundFormed | WorkersStarted | WorkerFailed | RestartDecided | AgentFinished


class RecordingObserver:
    """See `interfaces.observer.Observer`. All lists grow in the order of telling.

    Attributes:
        facts: what plugins are told too.
        phases: of the agent.
        exits: of workers.
    """

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.phases: list[PhaseChanged] = []
        self.exits: list[WorkerExited] = []

    def round_formed(self, fact: RoundFormed) -> None:
        self.facts.append(fact)

    def workers_started(self, fact: WorkersStarted) -> None:
        self.facts.append(fact)

    def worker_exited(self, fact: WorkerExited) -> None:
        self.exits.append(fact)

    def worker_failed(self, fact: WorkerFailed) -> None:
        self.facts.append(fact)

    def restart_decided(self, fact: RestartDecided) -> None:
        self.facts.append(fact)

    def agent_finished(self, fact: AgentFinished) -> None:
        self.facts.append(fact)

    def phase_changed(self, fact: PhaseChanged) -> None:
        self.phases.append(fact)

"""The history of one run, as its observers heard it: for the result file and for the report at the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.observer import (
        AgentFinished,
        PhaseChanged,
        RestartDecided,
        RoundFormed,
        WorkerExited,
        WorkerFailed,
        WorkersStarted,
    )


class History:
    """An observer that keeps all that is reported. Fields grow in the order in which things happen."""

    def __init__(self) -> None:
        self.rounds: list[RoundFormed] = []
        self.started: list[WorkersStarted] = []
        self.failures: list[ProcessFailure] = []
        self.restarts: list[RestartDecided] = []
        self.finished: AgentFinished | None = None

    def round_formed(self, fact: RoundFormed) -> None:
        self.rounds.append(fact)

    def workers_started(self, fact: WorkersStarted) -> None:
        self.started.append(fact)

    def worker_exited(self, fact: WorkerExited) -> None:
        pass

    def worker_failed(self, fact: WorkerFailed) -> None:
        self.failures.append(fact.failure)

    def restart_decided(self, fact: RestartDecided) -> None:
        self.restarts.append(fact)

    def agent_finished(self, fact: AgentFinished) -> None:
        self.finished = fact

    def phase_changed(self, fact: PhaseChanged) -> None:
        pass

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what happened, round by round."""
        return {
            "rounds": [fact.as_dict() for fact in self.rounds],
            "workers": [_as_dict(fact) for fact in self.started],
            "failures": [failure.as_dict() for failure in self.failures],
            "restarts": [asdict(fact) for fact in self.restarts],
        }


def _as_dict(fact: WorkersStarted) -> dict[str, Any]:
    return {"run_id": fact.run_id, "round": fact.round, "pids": dict(fact.pids)}

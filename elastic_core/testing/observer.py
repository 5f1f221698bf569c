"""An observer that keeps what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.interfaces.observer import PhaseChanged, WorkerExited

if TYPE_CHECKING:
    from elastic_core.interfaces.observer import Fact


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

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, PhaseChanged):
            self.phases.append(fact)
        elif isinstance(fact, WorkerExited):
            self.exits.append(fact)
        else:
            self.facts.append(fact)

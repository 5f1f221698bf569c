from __future__ import annotations

from elastic_core.clock import Instant
from elastic_core.errors import ProcessFailure
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
from elastic_core.testing import RecordingObserver

FACTS = [
    RoundFormed("job", 1, 0, 1, 0.5),
    WorkersStarted("job", 1, {0: 7}),
    WorkerFailed("job", ProcessFailure(0, 7, 1)),
    RestartDecided("job", 1, "failure", "why", 1, 3),
    AgentFinished("job", "SUCCEEDED", "", 1),
]
PHASE = PhaseChanged("job", AgentPhase.JOINING, "waits", Instant(1.0))
EXIT = WorkerExited("job", 1, 0, 3)


def test_it_keeps_what_it_is_told_in_order():
    observer = RecordingObserver()
    for fact in (*FACTS, EXIT, PHASE):
        observer(fact)
    assert observer.facts == FACTS
    assert (observer.phases, observer.exits) == ([PHASE], [EXIT])

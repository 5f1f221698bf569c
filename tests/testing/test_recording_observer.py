from __future__ import annotations

from elastic_core.clock import Instant
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.health import AgentPhase
from elastic_core.interfaces.observer import (
    AgentFinished,
    Observer,
    PhaseChanged,
    RestartDecided,
    RoundFormed,
    SilentObserver,
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


def tell(observer: Observer):
    observer.round_formed(FACTS[0])
    observer.workers_started(FACTS[1])
    observer.worker_failed(FACTS[2])
    observer.restart_decided(FACTS[3])
    observer.agent_finished(FACTS[4])
    observer.worker_exited(EXIT)
    observer.phase_changed(PHASE)


def test_it_keeps_what_it_is_told_in_order():
    observer = RecordingObserver()
    tell(observer)
    assert observer.facts == FACTS
    assert (observer.phases, observer.exits) == ([PHASE], [EXIT])


def test_the_silent_observer_takes_every_fact():
    tell(SilentObserver())

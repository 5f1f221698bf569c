"""History and the observers that pass on: the same facts told to each."""

from __future__ import annotations

import json

import pytest

from elastic_core import events
from elastic_core.errors import ConfigurationError, ProcessFailure
from elastic_core.history import History
from elastic_core.interfaces.observer import (
    AgentFinished,
    Observer,
    RestartDecided,
    RoundFormed,
    WorkerFailed,
    WorkersStarted,
)
from elastic_core.observers import EventRecorder, Everyone
from elastic_core.testing import RecordingObserver

FAILURE = ProcessFailure(1, 77, 3, global_rank=1, reason="exit code 3")
FACTS = [
    RoundFormed("job", 1, 0, 1, 0.5),
    WorkersStarted("job", 1, {0: 76, 1: 77}),
    WorkerFailed("job", FAILURE),
    RestartDecided("job", 1, "failure", "rank 1: exit code 3", 1, 3),
    AgentFinished("job", "SUCCEEDED", "every worker succeeded", 1),
]


def tell(observer: Observer):
    observer.round_formed(FACTS[0])
    observer.workers_started(FACTS[1])
    observer.worker_failed(FACTS[2])
    observer.restart_decided(FACTS[3])
    observer.agent_finished(FACTS[4])


def test_history_keeps_everything():
    history = History()
    tell(history)
    assert (history.rounds, history.started, history.failures) == ([FACTS[0]], [FACTS[1]], [FAILURE])
    assert (history.restarts, history.finished) == ([FACTS[3]], FACTS[4])


def test_history_as_json():
    history = History()
    tell(history)
    content = history.as_dict()
    assert json.loads(json.dumps(content))["rounds"] == [
        {"run_id": "job", "round": 1, "group_rank": 0, "group_world_size": 1, "seconds": 0.5}
    ]
    assert content["workers"] == [{"run_id": "job", "round": 1, "pids": {0: 76, 1: 77}}]
    assert content["failures"] == [FAILURE.as_dict()]
    assert content["restarts"][0]["reason"] == "rank 1: exit code 3"


def test_everyone_is_told_in_order():
    told = []

    class Named(RecordingObserver):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def round_formed(self, fact):
            told.append(self.name)

    first, second = Named("first"), Named("second")
    tell(Everyone([first, second]))
    assert told == ["first", "second"]
    assert first.facts == second.facts == FACTS[1:]


def test_an_observer_that_raises_is_logged_and_the_others_are_told(capsys):
    class Broken(History):
        def worker_failed(self, fact):
            raise RuntimeError("cannot bear it")

    after = RecordingObserver()
    tell(Everyone([Broken(), after]))
    assert after.facts == FACTS
    said = capsys.readouterr().err
    assert 'observer failed: fact=WorkerFailed reason="cannot bear it"' in said
    assert "Traceback" in said


@pytest.fixture
def recorded():
    """The events of one destination, as they come."""
    seen = []
    name = f"seen-{len(events.handler_names())}"
    events.register_handler(name, seen.append)
    return name, seen


def test_facts_become_events(recorded):
    name, seen = recorded
    tell(EventRecorder(name))
    assert [(event.name, event.source) for event in seen] == [
        (name, events.EventSource.AGENT)
        for name in ("round_formed", "workers_started", "worker_failed", "restart_decided", "agent_finished")
    ]
    assert seen[0].metadata["seconds"] == 0.5
    assert seen[1].metadata == {"run_id": "job", "round": 1, "workers": 2}
    assert seen[2].metadata == {"run_id": "job", "rank": 1, "reason": "exit code 3"}
    assert seen[4].metadata["state"] == "SUCCEEDED"
    assert all(events.Event.deserialize(event.serialize()) == event for event in seen)


def test_an_unknown_destination_of_events():
    with pytest.raises(ConfigurationError, match="nowhere"):
        EventRecorder("nowhere").round_formed(FACTS[0])

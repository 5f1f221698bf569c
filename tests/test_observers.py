"""The history and the recorders, which all get the same facts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from elastic_core import events, metrics
from elastic_core.clock import Instant
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.health import AgentPhase, StopStatus
from elastic_core.interfaces.node import Member, Round
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
from elastic_core.observers import CombinedObserver, EventRecorder, History, MetricRecorder

FAILURE = ProcessFailure(1, 77, 3, global_rank=1, reason="exit code 3")
THOUSAND = Round(1, tuple(Member(f"node{i}", "", "", "trainer", 2) for i in range(1000)))
FACTS = [
    RoundFormed("job", 1, 0, 1, 0.5, THOUSAND),
    WorkersStarted("job", 1, {0: 76, 1: 77}, {0: 0, 1: 1}),
    WorkerFailed("job", FAILURE),
    RestartDecided("job", 1, "failure", "rank 1: exit code 3", 1, 3),
    AgentFinished("job", "SUCCEEDED", "every worker succeeded", 1),
]
EXIT = WorkerExited("job", 1, 1, 3)
PHASE = PhaseChanged("job", AgentPhase.STOPPING, "rank 1: exit code 3", Instant(3.0))
SAVING = [
    PhaseChanged(
        "job", AgentPhase.DRAINING, "received SIGTERM", Instant(4.0), stop=StopStatus(1, 40, 69.0, 99.0, *ranks)
    )
    for ranks in (((), (0, 1)), ((0,), (1,)))
]


def notify_all(observer: Observer):
    for fact in (*FACTS, EXIT, PHASE):
        observer(fact)


def test_history_keeps_everything():
    history = History()
    notify_all(history)
    assert (history.rounds, history.started, history.failures) == ([FACTS[0]], [FACTS[1]], [FAILURE])
    assert (history.restarts, history.finished) == ([FACTS[3]], FACTS[4])


def test_history_is_json_serializable():
    history = History()
    notify_all(history)
    content = history.as_dict()
    assert json.loads(json.dumps(content))["rounds"] == [
        {"run_id": "job", "round": 1, "group_rank": 0, "group_world_size": 1, "seconds": 0.5}
    ]
    assert content["workers"] == [{"run_id": "job", "round": 1, "pids": {0: 76, 1: 77}}]
    assert content["failures"] == [FAILURE.as_dict()]
    assert content["restarts"][0]["reason"] == "rank 1: exit code 3"


def test_history_keeps_the_last_status_of_each_stop():
    history = History()
    for fact in (*SAVING, replace(SAVING[1], stop=replace(SAVING[1].stop, round=2))):
        history(fact)
    assert [(stop["round"], stop["saved"], stop["unsaved"]) for stop in history.as_dict()["stops"]] == [
        (1, (0,), (1,)),
        (2, (0,), (1,)),
    ]


def test_observers_are_notified_in_order():
    received = []

    first, second = (lambda fact, name=name: received.append((name, fact)) for name in ("first", "second"))
    notify_all(CombinedObserver([first, second]))
    assert received == [(name, fact) for fact in (*FACTS, EXIT, PHASE) for name in ("first", "second")]


def test_observer_error_is_logged_and_others_are_notified(capsys):
    def broken(fact):
        if isinstance(fact, WorkerFailed):
            raise RuntimeError("cannot bear it")

    received = []
    notify_all(CombinedObserver([broken, received.append]))
    assert received == [*FACTS, EXIT, PHASE]
    said = capsys.readouterr().err
    assert 'plugin failed: part=observer fact=WorkerFailed reason="it raised RuntimeError: cannot bear it"' in said
    assert "Traceback" in said


@pytest.fixture
def recorded():
    """The events sent to one destination."""
    seen = []
    name = f"seen-{len(events.handler_names())}"
    events.register_handler(name, seen.append)
    return name, seen


def test_facts_become_events(recorded):
    name, seen = recorded
    notify_all(EventRecorder(seen.append, name))
    assert [(event.name, event.source) for event in seen] == [
        (name, events.EventSource.AGENT)
        for name in ("round_formed", "workers_started", "worker_failed", "restart_decided", "agent_finished")
    ]
    first = {"run_id": "job", "round": 1, "group_rank": 0, "group_world_size": 1, "seconds": 0.5}
    assert seen[0].metadata == first  # without the members; there may be a thousand
    assert seen[1].metadata == {"run_id": "job", "round": 1, "workers": 2}
    assert seen[2].metadata == {"run_id": "job", "rank": 1, "reason": "exit code 3"}
    assert seen[4].metadata["state"] == "SUCCEEDED"
    assert all(events.Event.deserialize(event.serialize()) == event for event in seen)


def test_saving_becomes_an_event(recorded):
    name, seen = recorded
    EventRecorder(seen.append, name)(SAVING[0])
    (event,) = seen
    assert (event.name, event.metadata["step"], event.metadata["unsaved"]) == ("workers_saving", 40, "0, 1")
    assert events.Event.deserialize(event.serialize()) == event


def test_sink_error_is_harmless():
    def broken(event):
        raise OSError("full")

    notify_all(EventRecorder(broken, "broken"))


class Figures(metrics.MetricHandler):
    def __init__(self):
        self.values = []

    def emit(self, metric_data):
        self.values.append((metric_data.name.removeprefix("workers.trainer."), metric_data.value))

    def take(self):
        taken, self.values = self.values, []
        return taken


@pytest.fixture
def figures():
    handler = Figures()
    metrics.configure(handler)
    yield handler
    metrics.configure(metrics.NullMetricHandler())


def outcome(name, flakiness):
    names = [f"run_{how}_{retries}" for how in ("success", "failed") for retries in ("with_retries", "no_retries")]
    return [("flakiness", flakiness), ("run_total", 1), *((each, int(each == f"run_{name}")) for each in names)]


def test_facts_become_metrics(figures):
    notify_all(MetricRecorder("trainer", 3))
    states = [("remaining_restarts", 3), ("healthy", 1), ("remaining_restarts", 2), ("failed", 1)]
    end = [("remaining_restarts", 2), ("succeeded", 1), *outcome("success_with_retries", 25)]
    assert figures.take() == [*states, *end]


@pytest.mark.parametrize(
    ("state", "restarts", "name", "flakiness"),
    [
        ("SUCCEEDED", 0, "success_no_retries", 0),
        ("SUCCEEDED", 1, "success_with_retries", 50),
        ("SUCCEEDED", 5, "success_with_retries", 50),  # more restarts than this node allows
        ("FAILED", 0, "failed_no_retries", 100),
        ("FAILED", 1, "failed_with_retries", 100),
    ],
)
def test_result_becomes_metrics(figures, state, restarts, name, flakiness):
    MetricRecorder("trainer", 1)(AgentFinished("job", state, "", restarts))
    left = max(0, 1 - restarts)
    assert figures.take() == [("remaining_restarts", left), (state.lower(), 1), *outcome(name, flakiness)]


def test_stopped_run_has_no_result_metrics(figures):
    MetricRecorder("trainer", 1)(AgentFinished("job", "STOPPED", "received SIGTERM", 0))
    assert figures.take() == [("remaining_restarts", 1), ("stopped", 1)]


def test_late_node_counts_restarts_but_not_membership_changes(figures):
    recorder = MetricRecorder("trainer", 3)
    recorder(RoundFormed("job", 4, 0, 1, 0.5, Round(4, (), restart_count=2)))
    recorder(FACTS[1])
    recorder(RestartDecided("job", 4, "membership", "a node came", 2, 3))
    assert figures.take() == [("remaining_restarts", 1), ("healthy", 1)]

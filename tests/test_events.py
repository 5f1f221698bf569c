from __future__ import annotations

import io
import json
import os
import resource
import socket
import subprocess
import sys
import uuid

import pytest

from elastic_core import events, log
from elastic_core.errors import ConfigurationError

EVENT = events.Event("started", events.EventSource.AGENT, 17, {"rank": 3, "node": None})


@pytest.fixture
def name():
    return f"handler-{uuid.uuid4()}"


def test_null_handler_is_the_default_and_silent(capsys):
    events.record(EVENT)
    assert capsys.readouterr() == ("", "")


def test_console_writes_json_to_stderr(capsys):
    events.record(EVENT, "console")
    assert json.loads(capsys.readouterr().err) == {
        "name": "started",
        "source": "AGENT",
        "timestamp": 17,
        "metadata": {"rank": 3, "node": None},
    }


MANY = """
from elastic_core import events

for number in range(2000):
    events.record(events.Event("started", events.EventSource.AGENT, number, {"text": "x" * 100}), "console")
"""


@pytest.mark.integration
def test_console_that_nobody_reads_blocks_nobody():
    with subprocess.Popen([sys.executable, "-c", MANY], stderr=subprocess.PIPE, text=True) as process:
        assert process.wait(60) == 0
        received = process.stderr.read().splitlines()
    assert 0 < len(received) < 2000
    assert json.loads(received[0])["timestamp"] == 0


def test_event_round_trip():
    assert events.Event.deserialize(str(EVENT)) == EVENT


def test_timestamp_defaults_to_now():
    assert events.Event("a", events.EventSource.WORKER).timestamp > 1_600_000_000_000


def test_registered_handler_receives_events(name):
    seen = []
    events.register_handler(name, seen.append)
    events.record(EVENT, name)
    assert seen == [EVENT]
    assert name in events.handler_names()


def test_taken_handler_name_is_an_error(name):
    events.register_handler(name, print)
    events.register_handler(name, print)
    with pytest.raises(ConfigurationError, match="is taken"):
        events.register_handler(name, repr)


def test_unknown_destination_names_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"unknown event handler 'nul'; known.*console.*null") as raised:
        events.record(EVENT, "nul")
    assert raised.value.problems[0].origin == "event handler"


def test_handler_error_is_logged_and_not_raised(name):
    def broken(event):
        raise OSError("full")

    stream = io.StringIO()
    log.configure(format="json", stream=stream)
    events.register_handler(name, broken)
    events.record(EVENT, name)
    log.configure(level="warning")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["name"], line["destination"]) == ("event lost", "started", name)


def test_event_file_may_be_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    handler = events.open_handler("file:~/events")
    handler(EVENT)
    handler.close()
    assert (tmp_path / "events").read_text() == EVENT.serialize() + "\n"
    with pytest.raises(
        ConfigurationError, match="--event-log-handler: cannot write to the file '~no-such-user/events'"
    ):
        events.open_handler("file:~no-such-user/events")


def test_full_event_file_is_reported_once_until_it_recovers(tmp_path, capsys):
    handler = events.open_handler(f"file:{tmp_path / 'events'}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        try:
            for _ in range(3):
                handler(EVENT)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        handler(EVENT)
    handler.close()
    shown = capsys.readouterr().err
    assert (shown.count("event lost"), shown.count("\n")) == (2, 2)
    assert (tmp_path / "events").read_text() == f"{EVENT}\n" * 8


def test_full_event_file_is_closed_without_another_warning(capsys):
    handler = events.open_handler("file:/dev/full")
    handler(EVENT)
    handler.close()
    handler.close()
    assert capsys.readouterr().err.count("event lost: file=/dev/full") == 1


RDZV = events.RdzvEvent("join", "job", "joined", "host", 7, events.NodeState.RUNNING, rank=1)


def test_rdzv_event_round_trip():
    assert events.RdzvEvent.deserialize(str(RDZV)) == RDZV == events.RdzvEvent.deserialize(RDZV)
    assert json.loads(str(RDZV))["node_state"] == "RUNNING"
    assert events.Event.deserialize(EVENT) is EVENT


def test_rdzv_events_go_to_the_registered_handler():
    received = []

    def join(state):
        events.construct_and_record_rdzv_event("job", "joined", state, rank=2)

    join(events.NodeState.INIT)
    events.record_rdzv_event(RDZV)
    events.register_handler("dynamic_rendezvous", received.append)
    join(events.NodeState.INIT)
    try:
        raise ValueError("no place")
    except ValueError:
        join(events.NodeState.FAILED)
    events.record_rdzv_event(RDZV)
    begun, failed, last = received
    assert (begun.name, begun.run_id, begun.rank, begun.pid) == ("test_events.py:join", "job", 2, os.getpid())
    assert (begun.hostname, begun.error_trace) == (socket.getfqdn(), "")
    assert failed.error_trace.endswith("ValueError: no place\n")
    assert last is RDZV

"""Spans of recoveries, in the SDK's own memory; and over exporters that a distribution in a folder brings."""

from __future__ import annotations

import os
import sys

import pytest
from elastic_testing import FakeClock

from elastic_core import compose, launch
from elastic_core.clock import Instant
from elastic_core.config import settings_from
from elastic_core.health.board import StatusBoard
from elastic_core.health.spans import export_recoveries, span_recoveries
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.health import AgentPhase
from elastic_core.interfaces.observer import PhaseChanged, RestartDecided, RoundFormed

EPOCH = 1_700_000_000


def recover(board, clock, number):
    """From a round to the next: half a second to see why, one to stop, two to meet, three to start."""
    for name, seconds in (("stopping", 0.5), ("joining", 1.0), ("starting", 2.0), ("running", 3.0)):
        sign = clock.now()
        at = clock.advance(seconds)
        if name == "joining":
            board(RestartDecided("job", number - 1, "hang", "rank 3", 1, 3))
        if name == "starting":
            board(RoundFormed("job", number, 0, 1, 1.0))
        board(PhaseChanged("job", AgentPhase(name), "", at, Instant(sign)))


@pytest.fixture
def clock():
    return FakeClock(EPOCH)


@pytest.fixture
def board(clock):
    made = StatusBoard("job", "node7", "trainer", 3, clock)
    made(RoundFormed("job", 1, 0, 1, 1.0))
    return made


@pytest.fixture
def memory(board):
    """An exporter that keeps the spans of the board."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    span_recoveries(board, provider.get_tracer("test"))
    return memory


def test_each_recovery_is_a_span_with_a_child_for_each_part(board, clock, memory):
    recover(board, clock, 2)
    recover(board, clock, 3)
    spans = memory.get_finished_spans()
    assert [span.name for span in spans] == ["detect", "stop", "rendezvous", "start", "recovery"] * 2
    *parts, whole = spans[5:]
    assert whole.attributes == {
        "elastic.run_id": "job",
        "elastic.node": "node7",
        "elastic.round": 3,
        "elastic.cause": "hang",
        "elastic.reason": "rank 3",
    }
    assert {span.parent.span_id for span in parts} == {whole.context.span_id}
    assert whole.parent is None
    assert whole.context.trace_id != spans[4].context.trace_id
    seconds = [((span.start_time / 1e9) - EPOCH, (span.end_time / 1e9) - EPOCH) for span in [*parts, whole]]
    assert seconds == [(6.5, 7.0), (7.0, 8.0), (8.0, 10.0), (10.0, 13.0), (6.5, 13.0)]


def test_recovery_is_a_span_if_a_store_counts_rounds_again(board, clock, memory):
    for number in (3, 3, 2):
        recover(board, clock, number)
    found = [span.attributes["elastic.round"] for span in memory.get_finished_spans() if span.name == "recovery"]
    assert found == [3, 3, 2]


@pytest.mark.parametrize("environ", [{}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}])
def test_nobody_wants_them(environ, board):
    assert export_recoveries(board, environ) is None


EXPORTERS = """
import threading

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

seen, closed = [], threading.Event()


class Keeping(SpanExporter):
    def export(self, spans):
        seen.extend(span.name for span in spans)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        closed.set()


class Broken(SpanExporter):
    def __init__(self):
        raise RuntimeError("no collector")
"""


@pytest.fixture
def exporters(tmp_path, monkeypatch):
    """The module of two: `kept_proto_http`, and `broken`."""
    pytest.importorskip("opentelemetry.sdk")
    (tmp_path / "folder_exporters.py").write_text(EXPORTERS)
    info = tmp_path / "folder_exporters-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: folder-exporters\nVersion: 1.0\n")
    points = "kept_proto_http = folder_exporters:Keeping\nbroken = folder_exporters:Broken\n"
    (info / "entry_points.txt").write_text(f"[opentelemetry_traces_exporter]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    import folder_exporters

    yield folder_exporters
    del sys.modules["folder_exporters"]


def test_they_reach_the_exporter_that_is_named(board, clock, exporters):
    end = export_recoveries(board, {"OTEL_TRACES_EXPORTER": "kept"})
    recover(board, clock, 2)
    end()
    assert exporters.closed.wait(60)
    assert exporters.seen == ["detect", "stop", "rendezvous", "start", "recovery"]


def test_one_that_is_not_installed_is_not_missed(board):
    assert export_recoveries(board, {"OTEL_TRACES_EXPORTER": "nobody-has-this"}) is None


@pytest.mark.integration
def test_a_job_goes_on_without_its_exporter(exporters, capsys):
    settings = settings_from({"rdzv_backend": "local", "rdzv_id": "job", "no_python": True})
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": "broken"}
    entry = compose.script_entry(settings, "true", (), environ)
    assert not launch.run_job(settings, entry, PluginManager.load({}), environ).is_failed()
    assert 'spans lost: reason="no collector"' in capsys.readouterr().err


@pytest.mark.integration
def test_the_recoveries_of_a_job(exporters):
    settings = settings_from({"rdzv_backend": "local", "rdzv_id": "job", "no_python": True, "max_restarts": 1})
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": "kept"}
    script = "exit $((1 - TORCHELASTIC_RESTART_COUNT))"
    entry = compose.script_entry(settings, "sh", ("-c", script), environ)
    assert not launch.run_job(settings, entry, PluginManager.load({}), environ).is_failed()
    assert exporters.closed.wait(60)  # a slow exporter is not waited for to the end
    assert exporters.seen[-1] == "recovery"

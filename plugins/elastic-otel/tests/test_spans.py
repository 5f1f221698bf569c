"""Spans of recoveries, exported to memory and through exporters installed as entry points."""

from __future__ import annotations

import os
import threading
import time

import pytest
from elastic_otel.plugin import RecoverySpans
from elastic_otel.spans import make_spans
from elastic_testing import NotificationContract

from elastic_core import launch
from elastic_core.compose.plan import plan_of
from elastic_core.compose.policy import script_entry
from elastic_core.config import Reading, settings_from
from elastic_core.hooks.manager import PluginManager
from elastic_core.plugin import Context, Recovered, Recovery, WorkerExited

EPOCH = 1_700_000_000


def recovered(number):
    """A recovery: 0.5 s to detect, 1 s to stop, 2 s to meet, 3 s to start."""
    return Recovered("job", "node7", Recovery(number, "hang", "rank 3", EPOCH + 6.5 * number, 0.5, 1.0, 2.0, 3.0))


def test_each_recovery_is_a_span_with_a_child_for_each_part():
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    for number in (1, 2):
        make_spans(provider.get_tracer("test"), recovered(number))
    spans = memory.get_finished_spans()
    assert [span.name for span in spans] == ["detect", "stop", "rendezvous", "start", "recovery"] * 2
    *parts, whole = spans[5:]
    attributes = {
        "elastic.run_id": "job",
        "elastic.node": "node7",
        "elastic.round": 2,
        "elastic.cause": "hang",
        "elastic.reason": "rank 3",
    }
    assert [span.attributes for span in (*parts, whole)] == [attributes] * 5
    assert {span.parent.span_id for span in parts} == {whole.context.span_id}
    assert whole.parent is None
    assert whole.context.trace_id != spans[4].context.trace_id
    seconds = [((span.start_time / 1e9) - EPOCH, (span.end_time / 1e9) - EPOCH) for span in [*parts, whole]]
    assert seconds == [(6.5, 7.0), (7.0, 8.0), (8.0, 10.0), (10.0, 13.0), (6.5, 13.0)]


def test_recovery_has_an_event_for_each_worker_exit(exporters):
    spans = RecoverySpans({"OTEL_TRACES_EXPORTER": "kept"})
    spans.elastic_round_formed(Context())
    begun = time.time_ns()
    spans.elastic_worker_exited(WorkerExited("job", 4, 1, 3))
    spans.elastic_worker_exited(WorkerExited("job", 4, 0, -9, stopped=True))
    ended = time.time_ns()
    for number in (5, 6):
        spans.elastic_recovered(recovered(number))
    spans.elastic_worker_exited(WorkerExited("job", 6, 0, 1))
    spans.elastic_agent_finished()
    spans.elastic_round_formed(Context())  # of the next agent in this thread
    spans.elastic_recovered(recovered(1))
    spans.elastic_agent_finished()
    assert [(event.name, dict(event.attributes)) for event in exporters.events] == [
        ("worker exited", exit_attributes(4, 1, 3, False)),
        ("worker exited", exit_attributes(4, 0, -9, True)),
    ]
    assert all(begun - 1000 <= event.timestamp <= ended for event in exporters.events)  # a float has 2**-22 s here


def exit_attributes(number, local_rank, exit_code, stopped):
    return {
        "elastic.round": number,
        "elastic.local_rank": local_rank,
        "elastic.exit_code": exit_code,
        "elastic.stopped": stopped,
    }


@pytest.fixture
def export_one_recovery():
    """A function that runs the hooks for one recovery, with the given environment variables."""

    def run(**environ):
        spans = RecoverySpans(environ)
        spans.elastic_round_formed(Context())
        spans.elastic_recovered(recovered(1))
        spans.elastic_round_formed(Context())
        spans.elastic_agent_finished()

    return run


EXPORTERS = """
import threading

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

seen, events, closed = [], [], threading.Event()


class Keeping(SpanExporter):
    def export(self, spans):
        seen.extend(span.name for span in spans)
        events.extend(event for span in spans for event in span.events)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        closed.set()


class Broken(SpanExporter):
    def __init__(self):
        raise RuntimeError("no collector")
"""


@pytest.fixture
def exporters(put_on_path):
    """Install exporters, of which `kept` and `otlp_proto_grpc` work, and return their module."""
    pytest.importorskip("opentelemetry.sdk")
    kinds = {"kept": "Keeping", "otlp_proto_grpc": "Keeping", "otlp": "Broken", "broken": "Broken"}
    points = [f"{name} = folder_exporters:{kind}" for name, kind in kinds.items()]
    put_on_path("folder-exporters", {"opentelemetry_traces_exporter": points}, {"folder_exporters": EXPORTERS})
    import folder_exporters

    return folder_exporters


class TestHooks(NotificationContract):
    limit = 60.0  # the first round imports OpenTelemetry

    @pytest.fixture(params=["none", "kept"])
    def plugin(self, request, exporters):
        return RecoverySpans({"OTEL_TRACES_EXPORTER": request.param})


@pytest.mark.parametrize("environ", [{}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}])
def test_no_spans_without_an_exporter(environ, exporters, export_one_recovery):
    export_one_recovery(**environ)
    assert exporters.seen == []


def test_spans_reach_the_selected_exporter(exporters, export_one_recovery):
    export_one_recovery(OTEL_TRACES_EXPORTER="kept")
    assert exporters.closed.wait(60)
    assert exporters.seen == ["detect", "stop", "rendezvous", "start", "recovery"]


@pytest.mark.integration
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_otlp_uses_grpc_only_if_asked_to(exporters, export_one_recovery, variable):
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    export_one_recovery(**endpoint)
    assert exporters.seen == []
    export_one_recovery(**endpoint, **{variable: "grpc"})
    assert exporters.seen == ["detect", "stop", "rendezvous", "start", "recovery"]


def test_missing_exporter_is_named_and_ignored(exporters, export_one_recovery, capsys):
    export_one_recovery(OTEL_TRACES_EXPORTER="nobody-has-this")
    assert exporters.seen == []
    assert "nobody-has-this" in capsys.readouterr().err


def test_each_agent_has_its_own_exporter(exporters):
    """Another agent, in another thread, may end first."""
    spans = RecoverySpans({"OTEL_TRACES_EXPORTER": "kept"})
    spans.elastic_round_formed(Context())
    other = threading.Thread(target=lambda: (spans.elastic_round_formed(Context()), spans.elastic_agent_finished()))
    other.start()
    other.join()
    spans.elastic_recovered(recovered(1))
    spans.elastic_agent_finished()
    assert exporters.seen == ["detect", "stop", "rendezvous", "start", "recovery"]


def restarted_job(environ):
    """Run a job whose worker fails once, with the installed plugins, as `elastic run` does."""
    settings = settings_from({"rdzv_backend": "local", "rdzv_id": "job", "no_python": True, "max_restarts": 1})
    entry = script_entry(settings, "sh", ("-c", "exit $((1 - TORCHELASTIC_RESTART_COUNT))"), environ)
    return launch.run_job(plan_of(Reading(settings), PluginManager.load({})).checked(), entry, environ)


@pytest.mark.integration
def test_job_survives_a_broken_exporter(exporters, capsys, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "broken")
    assert not restarted_job(os.environ).is_failed()
    log_text = capsys.readouterr().err
    assert "no collector" in log_text
    assert "elastic-otel" in log_text


@pytest.mark.integration
def test_job_exports_its_recoveries(exporters, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "kept")
    assert not restarted_job(os.environ).is_failed()
    assert exporters.closed.wait(60)  # the job does not wait for a slow exporter
    assert exporters.seen[-1] == "recovery"
    found = [(event.name, dict(event.attributes)) for event in exporters.events]
    assert ("stopping", {"elastic.reason": "rank 0: exit code 1"}) in found
    assert [event for event in found if event[0] not in ("stopping", "joining")] == [
        ("worker exited", exit_attributes(1, 0, 1, False)),
        (
            "worker failed",
            {"elastic.round": 1, "elastic.rank": 0, "elastic.reason": "exit code 1", "elastic.message": ""},
        ),
        ("restart decided", {"elastic.round": 1, "elastic.restart_count": 1, "elastic.max_restarts": 1}),
    ]

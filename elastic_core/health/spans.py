"""OpenTelemetry spans: one for each recovery, with a child for each of its parts. The extra `elastic-core[otel]` brings
what this needs. Spans are exported if OpenTelemetry's variables name an exporter, or an endpoint for one, and that
exporter is installed."""

from __future__ import annotations

import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from elastic_core.health.changes import Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from elastic_core.clock import Duration
    from elastic_core.health.board import StatusBoard
    from elastic_core.interfaces.health import AgentStatus, Recovery

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PATIENCE: Duration = 2.0  # seconds for which a collector that does not answer can delay the end


def export_recoveries(board: StatusBoard, environ: Mapping[str, str]) -> Callable[[], None] | None:
    """Begin to export recoveries. Returns a function that ends the export, within 2 s; None without an exporter."""
    exporter = _exporter(environ)
    if exporter is None:
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    span_recoveries(board, provider.get_tracer("elastic_core"))

    def end() -> None:
        ending = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_PATIENCE)

    return end


def span_recoveries(board: StatusBoard, tracer: Tracer) -> None:
    """Make a span of each recovery that appears on the board from now on."""
    last: Recovery | None = None

    def look() -> None:
        nonlocal last
        status = board.status()
        for recovery in status.recoveries[-1:]:
            if recovery != last:  # the number of its round may be lower: a store that lost its data counts again
                last = recovery
                _make_span(tracer, status, recovery)

    board.subscribe(look)


def _make_span(tracer: Tracer, status: AgentStatus, recovery: Recovery) -> None:
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context

    attributes: dict[str, str | int] = {
        "elastic.run_id": status.run_id,
        "elastic.node": status.node,
        "elastic.round": recovery.round,
        "elastic.cause": recovery.cause,
        "elastic.reason": recovery.reason,
    }
    begun = recovery.at - recovery.total
    whole = tracer.start_span("recovery", Context(), start_time=_nanoseconds(begun), attributes=attributes)
    for part in Parts._fields:
        ended = begun + getattr(recovery, part)
        child = tracer.start_span(part, set_span_in_context(whole), start_time=_nanoseconds(begun))
        child.end(_nanoseconds(ended))
        begun = ended
    whole.end(_nanoseconds(recovery.at))


def _exporter(environ: Mapping[str, str]) -> SpanExporter | None:
    """The exporter that OTEL_TRACES_EXPORTER names; unset, the one for OTLP if a variable gives its endpoint."""
    wanted = environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(environ.get, _ENDPOINTS)) else "none")
    if wanted == "none":
        return None  # before the installed distributions are read, which takes time
    installed = {point.name: point for point in entry_points(group="opentelemetry_traces_exporter")}
    names = (wanted, f"{wanted}_proto_http", f"{wanted}_proto_grpc")
    found = next((installed[name] for name in names if name in installed), None)
    exporter: SpanExporter | None = found.load()() if found else None
    return exporter


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

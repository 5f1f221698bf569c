"""Exports each recovery as a span, with child spans for its parts, and events for what preceded it."""

from __future__ import annotations

import contextlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import BackgroundCall, CallTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from elastic_core.plugin import Duration, Recovered
    from elastic_otel.plugin import Event

PARTS = ("detect", "stop", "rendezvous", "start")
_TO_END: Duration = 2.0  # seconds that an exporter may delay the agent's exit


def provider_for(name: str, environ: Mapping[str, str]) -> TracerProvider | None:
    """Return a provider for the named exporter, or None if the exporter is not installed. For `otlp`, OpenTelemetry's
    variables in `environ` choose between HTTP (the default) and gRPC. Errors from the exporter are raised."""
    installed: dict[str, Any] = {point.name: point for point in entry_points(group="opentelemetry_traces_exporter")}
    names: tuple[str, ...] = (name,)
    if name == "otlp":  # the entry point of this name uses gRPC, but HTTP is the standard's default
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next(filter(None, map(environ.get, variables)), "http/protobuf")
        names = ("otlp_proto_grpc", "otlp") if protocol == "grpc" else ("otlp_proto_http",)
    found = next((installed[it] for it in names if it in installed), None)
    if found is None:
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter: SpanExporter = found.load()()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def shut_down(provider: TracerProvider) -> None:
    """Export the remaining spans and stop the exporter, within 2 s."""
    with contextlib.suppress(CallTimeout):
        BackgroundCall(provider.shutdown).result(_TO_END)


def make_spans(tracer: Tracer, fact: Recovered, events: Iterable[Event] = ()) -> None:
    """Create the spans of one recovery in a new trace. `events` are added to the recovery's span."""
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context

    recovery = fact.recovery
    attributes: dict[str, str | int] = {
        "elastic.run_id": fact.run_id,
        "elastic.node": fact.node,
        "elastic.round": recovery.round,
        "elastic.cause": recovery.cause,
        "elastic.reason": recovery.reason,
    }
    begun = recovery.at - recovery.total
    whole = tracer.start_span("recovery", Context(), start_time=_nanoseconds(begun), attributes=attributes)
    for seconds, name, details in events:
        whole.add_event(name, details, _nanoseconds(seconds))
    for part in PARTS:
        ended = begun + getattr(recovery, part)
        context, at = set_span_in_context(whole), _nanoseconds(begun)
        child = tracer.start_span(part, context, start_time=at, attributes=attributes)
        child.end(_nanoseconds(ended))
        begun = ended
    whole.end(_nanoseconds(recovery.at))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

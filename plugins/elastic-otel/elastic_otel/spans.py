"""Exports each recovery as a span, with a child span for each of its parts."""

from __future__ import annotations

import contextlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import BackgroundCall

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from elastic_core.plugin import Duration, Recovered

PARTS = ("detect", "stop", "rendezvous", "start")
_TO_LOAD: Duration = 30.0  # seconds that the first recovery waits for the exporter to load
_TO_END: Duration = 2.0  # seconds that an exporter may delay the end


class Spans:
    """Exports with the exporter of this name, which is loaded in the background. Does nothing if that is missing."""

    def __init__(self, exporter: str) -> None:
        self._provider = BackgroundCall(lambda: _provider(exporter))

    def add(self, fact: Recovered) -> None:
        """Make the spans of a recovery. Raises the exporter's error if it failed to load, and Late after 30 s."""
        if (provider := self._provider.result(_TO_LOAD)) is not None:
            make_spans(provider.get_tracer("elastic_core"), fact)

    def close(self) -> None:
        """Flush the remaining spans. Waits at most 2 s for the exporter to load, and 2 s for it to shut down."""
        with contextlib.suppress(Exception):  # an exporter that failed to load has nothing to flush
            if (provider := self._provider.result(_TO_END)) is not None:
                BackgroundCall(provider.shutdown).result(_TO_END)


def make_spans(tracer: Tracer, fact: Recovered) -> None:
    """Make the spans of one recovery, in a separate trace."""
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
    for part in PARTS:
        ended = begun + getattr(recovery, part)
        child = tracer.start_span(part, set_span_in_context(whole), start_time=_nanoseconds(begun))
        child.end(_nanoseconds(ended))
        begun = ended
    whole.end(_nanoseconds(recovery.at))


def _provider(name: str) -> TracerProvider | None:
    installed: dict[str, Any] = {point.name: point for point in entry_points(group="opentelemetry_traces_exporter")}
    found = next((installed[it] for it in (name, f"{name}_proto_http", f"{name}_proto_grpc") if it in installed), None)
    if found is None:
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter: SpanExporter = found.load()()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

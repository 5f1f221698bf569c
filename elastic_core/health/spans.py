"""OpenTelemetry spans: one for each recovery, with a child for each of its parts. The extra `elastic-core[otel]` brings
what this needs. It is on when the usual variables name an exporter or an endpoint for one, and an exporter is there."""

from __future__ import annotations

import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from elastic_core.health.recovery import Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from elastic_core.clock import Duration
    from elastic_core.health.board import StatusBoard
    from elastic_core.interfaces.health import Recovery

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PATIENCE: Duration = 2.0  # seconds that a collector which does not answer can hold up the end


def export_recoveries(board: StatusBoard, environ: Mapping[str, str]) -> Callable[[], None] | None:
    """Begin to export them. Returns what ends that, after 2 s at the latest; None if nobody wants them."""
    exporter = _exporter(environ)
    if exporter is None:
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    RecoverySpans(board, provider.get_tracer("elastic_core"))

    def end() -> None:
        ending = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_PATIENCE)

    return end


class RecoverySpans:
    """Makes a span of each recovery that appears on the board."""

    def __init__(self, board: StatusBoard, tracer: Tracer) -> None:
        self._board, self._tracer, self._last = board, tracer, 0
        board.subscribe(self._look)

    def _look(self) -> None:
        for recovery in self._board.status().recoveries:
            if recovery.round > self._last:
                self._last = recovery.round
                self._tell(recovery)

    def _tell(self, recovery: Recovery) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        begun = recovery.at - recovery.total
        attributes = self._attributes(recovery)
        whole = self._tracer.start_span("recovery", Context(), start_time=_nanoseconds(begun), attributes=attributes)
        for part in Parts._fields:
            ended = begun + getattr(recovery, part)
            child = self._tracer.start_span(part, set_span_in_context(whole), start_time=_nanoseconds(begun))
            child.end(_nanoseconds(ended))
            begun = ended
        whole.end(_nanoseconds(recovery.at))

    def _attributes(self, recovery: Recovery) -> dict[str, str | int]:
        status = self._board.status()
        return {
            "elastic.run_id": status.run_id,
            "elastic.node": status.node,
            "elastic.round": recovery.round,
            "elastic.cause": recovery.cause,
            "elastic.reason": recovery.reason,
        }


def _exporter(environ: Mapping[str, str]) -> SpanExporter | None:
    """The one that OTEL_TRACES_EXPORTER names; the one for OTLP if that is not set and there is an endpoint for it."""
    wanted = environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(environ.get, _ENDPOINTS)) else "none")
    if wanted == "none":
        return None  # what is installed need not be read for that
    installed = {point.name: point for point in entry_points(group="opentelemetry_traces_exporter")}
    names = (wanted, f"{wanted}_proto_http", f"{wanted}_proto_grpc")
    found = next((installed[name] for name in names if name in installed), None)
    exporter: SpanExporter | None = found.load()() if found else None
    return exporter


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)

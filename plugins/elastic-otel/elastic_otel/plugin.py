"""The plugin: an object whose hooks export each recovery as OpenTelemetry spans."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_core.plugin import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.plugin import Recovered
    from elastic_otel.spans import Spans

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class RecoverySpans:
    """Exports recoveries if `environ` sets an OpenTelemetry exporter or an OTLP endpoint."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._spans: Spans | None = None

    @hookimpl
    def elastic_round_formed(self) -> None:
        """Start to load the exporter in the background, because that is slow."""
        name = self._environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(self._environ.get, _ENDPOINTS)) else "")
        if self._spans is None and name not in ("", "none"):
            from elastic_otel.spans import Spans

            self._spans = Spans(name)

    @hookimpl
    def elastic_recovered(self, fact: Recovered) -> None:
        if self._spans is not None:
            self._spans.add(fact)

    @hookimpl
    def elastic_agent_finished(self) -> None:
        spans, self._spans = self._spans, None
        if spans is not None:
            spans.close()


recovery_spans = RecoverySpans(os.environ)

"""What the plugin registers: an object that is told of rounds and recoveries."""

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
    """Exports recoveries if `environ` names an exporter of OpenTelemetry, or an endpoint for the one of OTLP."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._spans: Spans | None = None

    @hookimpl
    def elastic_round_formed(self) -> None:
        """Begin to load the exporter, which takes a while, in a thread of its own."""
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

"""The plugin. Its hooks export each recovery as OpenTelemetry spans."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from elastic_core.plugin import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import TracerProvider

    from elastic_core.plugin import Context, Recovered, WorkerExited

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class _OfAgent(threading.local):
    """One agent's state. It is local to a thread, because each agent calls hooks in its own thread. `asked` is True
    once the agent has looked for an exporter. `exits` lists the worker exits since the last recovery, with their times
    in seconds since the epoch."""

    asked = False
    provider: TracerProvider | None = None
    exits: tuple[tuple[float, WorkerExited], ...] = ()


class RecoverySpans:
    """Exports recoveries as spans if `environ` sets an OpenTelemetry exporter or an OTLP endpoint."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._agent = _OfAgent()

    @hookimpl
    def elastic_round_formed(self, context: Context) -> None:
        """Load the exporter before the first workers start. The exporter is loaded in this thread, because a worker
        that was forked while another thread imports modules would inherit the import locks."""
        name = self._environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(self._environ.get, _ENDPOINTS)) else "")
        if self._agent.asked or name in ("", "none"):
            return
        self._agent.asked = True
        from elastic_otel.spans import provider_for

        self._agent.provider = provider_for(name, self._environ)
        if self._agent.provider is None:
            context.log.warning("spans lost", reason=f"no OpenTelemetry exporter {name!r} is installed")

    @hookimpl
    def elastic_worker_exited(self, fact: WorkerExited) -> None:
        if self._agent.provider is not None:
            self._agent.exits += ((time.time(), fact),)

    @hookimpl
    def elastic_recovered(self, fact: Recovered) -> None:
        if self._agent.provider is not None:
            from elastic_otel.spans import make_spans

            exits, self._agent.exits = self._agent.exits, ()
            make_spans(self._agent.provider.get_tracer("elastic_core"), fact, exits)

    @hookimpl
    def elastic_agent_finished(self) -> None:
        """Export the remaining spans."""
        provider = self._agent.provider
        vars(self._agent).clear()  # another agent may run in this thread later
        if provider is not None:
            from elastic_otel.spans import shut_down

            shut_down(provider)


recovery_spans = RecoverySpans(os.environ)

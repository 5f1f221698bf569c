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

    from elastic_core.plugin import Context, PhaseChanged, Recovered, RestartDecided, WorkerExited, WorkerFailed

    Event = tuple[float, str, Mapping[str, str | int]]  # time in seconds since the epoch, name, attributes

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class _OfAgent(threading.local):
    """One agent's state. It is local to a thread, because each agent calls hooks in its own thread. `asked` is True
    once the agent has looked for an exporter. `events` lists the events since the last recovery."""

    asked = False
    provider: TracerProvider | None = None
    events: tuple[Event, ...] = ()


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
        details = {"elastic.local_rank": fact.local_rank, "elastic.exit_code": fact.exitcode}
        self._keep("worker exited", {"elastic.round": fact.round, **details, "elastic.stopped": fact.stopped})

    @hookimpl
    def elastic_worker_failed(self, fact: WorkerFailed) -> None:
        failure = fact.failure
        details = {"elastic.reason": failure.reason, "elastic.message": failure.message}
        self._keep("worker failed", {"elastic.round": failure.round, "elastic.rank": failure.global_rank, **details})

    @hookimpl
    def elastic_restart_decided(self, fact: RestartDecided) -> None:
        details = {"elastic.restart_count": fact.restart_count, "elastic.max_restarts": fact.max_restarts}
        self._keep("restart decided", {"elastic.round": fact.round, **details})

    @hookimpl
    def elastic_phase_changed(self, fact: PhaseChanged) -> None:
        if fact.phase in ("stopping", "joining"):  # the reasons for the parts of a recovery
            self._keep(fact.phase.value, {"elastic.reason": fact.reason})

    def _keep(self, name: str, attributes: Mapping[str, str | int]) -> None:
        if self._agent.provider is not None:
            self._agent.events += ((time.time(), name, attributes),)

    @hookimpl
    def elastic_recovered(self, fact: Recovered) -> None:
        if self._agent.provider is not None:
            from elastic_otel.spans import make_spans

            events, self._agent.events = self._agent.events, ()
            make_spans(self._agent.provider.get_tracer("elastic_core"), fact, events)

    @hookimpl
    def elastic_agent_finished(self) -> None:
        """Export the remaining spans."""
        provider = self._agent.provider
        vars(self._agent).clear()  # another agent may run in this thread later
        if provider is not None:
            from elastic_otel.spans import shut_down

            shut_down(provider)


recovery_spans = RecoverySpans(os.environ)

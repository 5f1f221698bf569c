"""What elastic-http-health brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import HealthEndpointRecord, Option, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import AgentView, Context, HealthCheckServer

_MOST = 1_000_000
_OPTIONS = (
    Option("host", str, "127.0.0.1", "address or name to answer at; 0.0.0.0 for IPv4, :: for everything"),
    Option("allowed_hosts", str, None, "names of this machine in requests, blanks between them; * in one for any part"),
    Option("token", str, None, "bearer token that all but the probes ask for; others see command lines", secret=True),
    Option("token_file", str, None, "file that holds the token; read again when it changes"),
    Option("cert_file", str, None, "certificate (PEM) to answer with by https; read again when it changes"),
    Option("key_file", str, None, "its private key (PEM); unset: it is in cert_file"),
    Option("connections", int, 64, "that may be open; the oldest idle one gives way to one more", least=4, most=_MOST),
    Option("rate", float, 200.0, "requests that are looked at; more of them wait", "per second", least=1, most=_MOST),
)


@hookimpl
def elastic_health_endpoints() -> list[HealthEndpointRecord]:
    return [HealthEndpointRecord("http", "probes, metrics and a page over HTTP", _create, _OPTIONS)]


def _create(context: Context, agent: AgentView, port: int, timeout: float) -> HealthCheckServer:
    from elastic_http_health.options import read_options  # asyncio, h11 and prometheus_client are not free to import
    from elastic_http_health.server import HttpHealthServer

    return HttpHealthServer(agent, port, timeout, read_options(context.options))

"""Registers the `http` health endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.plugin import HealthEndpointRecord, Option, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import AgentView, Context, HealthCheckServer

_MOST = 1_000_000
_OPTIONS = (
    Option(
        "host", str, "127.0.0.1", "address or name to listen on; 0.0.0.0 for all IPv4 addresses, :: for IPv6 as well"
    ),
    Option(
        "allowed_hosts", str, None, "host names to accept in requests, separated by spaces; * matches any characters"
    ),
    Option(
        "token", str, None, "bearer token for all paths except the probes; visible in the process list", secret=True
    ),
    Option("token_file", str, None, "file with the bearer token; reloaded when it changes"),
    Option("cert_file", str, None, "TLS certificate (PEM), which enables HTTPS; reloaded when it changes"),
    Option("key_file", str, None, "the certificate's private key (PEM); by default, read from cert_file"),
    Option("connections", int, 64, "maximum number of connections; new ones replace idle ones", least=4, most=_MOST),
    Option("rate", float, 200.0, "maximum request rate; further requests wait", "per second", least=1, most=_MOST),
)


@hookimpl
def elastic_health_endpoints() -> list[HealthEndpointRecord]:
    return [HealthEndpointRecord("http", "probes, metrics and a status page over HTTP", _create, _OPTIONS)]


def _create(context: Context, agent: AgentView, port: int, timeout: float) -> HealthCheckServer:
    from elastic_http_health.options import read_options  # asyncio, h11 and prometheus_client are slow to import
    from elastic_http_health.server import HttpHealthServer

    return HttpHealthServer(agent, port, timeout, read_options(context.options))

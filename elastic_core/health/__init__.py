"""The agent's health: a status board, liveness and readiness probes, and health check servers with torch's names."""

from typing import TYPE_CHECKING

from elastic_core.support.imports import lazy_names

if TYPE_CHECKING:
    from elastic_core.health.server import HealthCheckServer, Probe, create_healthcheck_server, live, ready

__all__ = ["HealthCheckServer", "Probe", "create_healthcheck_server", "live", "ready"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__)

"""The agent's health: its status board, liveness and readiness probes, and health check servers under torch's names."""

from elastic_core.health.server import HealthCheckServer, Probe, create_healthcheck_server, live, ready

__all__ = ["HealthCheckServer", "Probe", "create_healthcheck_server", "live", "ready"]

"""What others may know of an agent: the board that keeps its status, the answers to probes, and a server under torch's
name."""

from elastic_core.health.server import HealthCheckServer, Probe, create_healthcheck_server, live, ready

__all__ = ["HealthCheckServer", "Probe", "create_healthcheck_server", "live", "ready"]

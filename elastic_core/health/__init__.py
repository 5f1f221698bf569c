"""What others may know of an agent: the board on which its state stands, what probes are answered, and a server under
torch's name."""

from elastic_core.health.probes import Probe, live, ready
from elastic_core.health.server import HealthCheckServer, create_healthcheck_server

__all__ = ["HealthCheckServer", "Probe", "create_healthcheck_server", "live", "ready"]

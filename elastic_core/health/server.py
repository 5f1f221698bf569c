"""Liveness and readiness probes with Kubernetes semantics, and a health check server with torch's names. The server is
for programs with their own agent, and uses the installed endpoint `http`.

A failed liveness probe means that the process should be killed and restarted. An agent is therefore considered alive
even while its job is waiting or restarting, and after the job has failed. The probe fails if the agent's loop is stuck.
It also fails if the watchdog has died, because hung workers would then go unnoticed.

A failed readiness probe means that no workers are running on this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from elastic_core import compat
from elastic_core.clock import SystemClock
from elastic_core.health.board import StatusBoard
from elastic_core.interfaces import health
from elastic_core.interfaces.health import AgentPhase, AgentStatus
from elastic_core.interfaces.observer import PhaseChanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration


class Probe(NamedTuple):
    """The result of a probe and the reason for the result."""

    ok: bool
    reason: str


def live(alive_at: float, now: float, timeout: Duration, watchdog_fault: str = "") -> Probe:
    """Return whether the agent is alive.

    Args:
        alive_at: when the agent's loop last completed an iteration, in seconds since the epoch.
        now: the current time, in seconds since the epoch.
        timeout: seconds without an iteration after which the agent is considered stuck.
        watchdog_fault: why no watchdog is watching the workers, or an empty string if there is no fault.
    """
    silent = now - alive_at
    if silent > timeout:
        return Probe(False, f"stuck: no iteration of the agent's loop for {silent:.0f} s (limit: {timeout:g} s)")
    if watchdog_fault:
        return Probe(False, f"the workers' watchdog has failed: {watchdog_fault}")
    return Probe(True, "the agent's loop is running")


def ready(status: AgentStatus) -> Probe:
    """Return whether the agent's workers are running."""
    reason = f"{status.phase.value}: {status.reason}" if status.reason else status.phase.value
    return Probe(status.phase is AgentPhase.RUNNING, reason)


class HealthCheckServer(health.HealthCheckServer):
    """Serves health checks for a program. Subclasses may override `start` and `stop`.

    Args:
        alive_callback: returns when the program was last known to be alive, in seconds since the epoch. Called from
            other threads.
        port: the port to listen on.
        timeout: the program is considered stuck if the returned time is more than this many seconds ago.
    """

    def __init__(self, alive_callback: Callable[[], float], port: int, timeout: Duration) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._endpoint: health.HealthCheckServer | None = None

    def start(self) -> None:
        """Start serving.

        Raises:
            PluginError: no endpoint `http` is installed. The message names the package to install.
            OSError: the port is not available.
        """
        self.prepare().start()

    def stop(self) -> None:
        """Stop serving and release the port. Idempotent."""
        if self._endpoint is not None:
            self._endpoint.stop()

    def prepare(self) -> health.HealthCheckServer:
        """Create the endpoint without starting it. Raises PluginError if no endpoint `http` is installed."""
        if self._endpoint is not None:
            return self._endpoint
        from elastic_core.hooks.calls import installed_record
        from elastic_core.hooks.records import HealthEndpointRecord

        name = compat.HEALTH_ENDPOINT
        chosen, context = installed_record(HealthEndpointRecord, name, {}, "create_healthcheck_server")
        clock = SystemClock()
        board = StatusBoard("", "", "", 0, clock)  # of a program that only reports when it was last alive
        board(PhaseChanged("", AgentPhase.RUNNING, "", clock.now()))
        board.follow(self._alive_callback)
        self._endpoint = chosen.record.factory(context, board, self._port, self._timeout)
        return self._endpoint


def create_healthcheck_server(alive_callback: Callable[[], float], port: int, timeout: Duration) -> HealthCheckServer:
    """Create a `HealthCheckServer` without starting it. Raises PluginError if no endpoint `http` is installed."""
    server = HealthCheckServer(alive_callback, port, timeout)
    server.prepare()
    return server

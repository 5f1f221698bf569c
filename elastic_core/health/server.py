"""The answers to the two probes of an orchestrator, which mean what they mean to Kubernetes; and health check servers
under torch's names, for programs with an agent of their own: the installed endpoint `http` answers for them.

Liveness: red means that this process should be killed and started again. So a job that waits,
restarts or has failed is alive. An agent whose loop does not turn is not alive, and neither is one whose watchdog has
died, because hung workers would go unnoticed. Readiness: red means that no workers run here at the moment.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.clock import SystemClock
from elastic_core.compat import choices
from elastic_core.interfaces import health
from elastic_core.interfaces.health import AgentPhase, AgentStatus, CheckStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration


class Probe(NamedTuple):
    """The answer to a probe: whether all is well, and in words why or why not."""

    ok: bool
    reason: str


def live(alive_at: float, now: float, timeout: Duration, watchdog_fault: str = "") -> Probe:
    """Whether the agent lives.

    Args:
        alive_at: when its loop last turned, seconds since the epoch.
        now: the present, seconds since the epoch.
        timeout: seconds without a turn after which it counts as stuck.
        watchdog_fault: why no watchdog watches the workers; empty while all is well.
    """
    silent = now - alive_at
    if silent > timeout:
        return Probe(False, f"stuck: the agent's loop has not turned for {silent:.0f} s, {timeout:g} s are allowed")
    if watchdog_fault:
        return Probe(False, f"no watchdog watches the workers: {watchdog_fault}")
    return Probe(True, "the agent's loop turns")


def ready(status: AgentStatus) -> Probe:
    """Whether its workers run."""
    reason = f"{status.phase.value}: {status.reason}" if status.reason else status.phase.value
    return Probe(status.phase is AgentPhase.RUNNING, reason)


class HealthCheckServer(health.HealthCheckServer):
    """Answers the question whether a program is alive. A subclass that answers in another way overrides `start` and
    `stop`.

    Args:
        alive_callback: when the program was last alive, seconds since the epoch. Called from other threads.
        port: the port to answer on.
        timeout: seconds without a sign of life after which the program counts as stuck.
    """

    def __init__(self, alive_callback: Callable[[], float], port: int, timeout: Duration) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._endpoint: health.HealthCheckServer | None = None

    def start(self) -> None:
        """Begin to answer.

        Raises:
            PluginError: no endpoint `http` is installed; the message says what to install.
            OSError: the port is not available.
        """
        self.prepare().start()

    def stop(self) -> None:
        """Stop answering and release the port. Idempotent."""
        if self._endpoint is not None:
            self._endpoint.stop()

    def prepare(self) -> health.HealthCheckServer:
        """The endpoint that will answer. Raises PluginError if none is installed."""
        if self._endpoint is None:
            self._endpoint = _make(self._alive_callback, self._port, self._timeout)
        return self._endpoint


def create_healthcheck_server(alive_callback: Callable[[], float], port: int, timeout: Duration) -> HealthCheckServer:
    """A `HealthCheckServer` with these arguments, not started yet. Raises PluginError at once if no endpoint `http` is
    installed."""
    server = HealthCheckServer(alive_callback, port, timeout)
    server.prepare()
    return server


def _make(alive_callback: Callable[[], float], port: int, timeout: Duration) -> health.HealthCheckServer:
    from elastic_core.hooks.context import Context
    from elastic_core.hooks.manager import PluginManager  # reads what is installed; only needed here
    from elastic_core.hooks.options import type_options
    from elastic_core.hooks.records import HealthEndpointRecord

    record = PluginManager.load(os.environ).select(HealthEndpointRecord, choices.HEALTH_ENDPOINT)
    options, _ = type_options(record.options, {}, "create_healthcheck_server")
    return record.factory(Context(options=options), _CallbackView(alive_callback), port, timeout)


class _CallbackView:
    """An `interfaces.health.AgentView` of a program that says when it was last alive, in seconds since the epoch, and
    nothing else. Its phase is always `running`."""

    def __init__(self, alive_callback: Callable[[], float]) -> None:
        self._alive_callback = alive_callback
        self._status = AgentStatus(1, "", "", "", AgentPhase.RUNNING, SystemClock().timestamp())

    def alive_at(self) -> float:
        return self._alive_callback()

    def watchdog_fault(self) -> str:
        return ""

    def template_pid(self) -> int | None:
        return None

    def checks(self) -> tuple[CheckStatus, ...]:
        return ()

    def not_signed(self) -> int:
        return 0

    def status(self) -> AgentStatus:
        return self._status

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

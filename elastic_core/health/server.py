"""Health check servers under torch's names, for programs with an agent of their own: the installed endpoint `http`
answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_core.health.view import CallbackView
from elastic_core.interfaces import health

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration

_ENDPOINT = "http"


class HealthCheckServer(health.HealthCheckServer):
    """Tells who asks whether a program is alive. A subclass may answer in another way; then it overrides `start` and
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
            PluginError: no endpoint `http` is installed; it says what to install.
            OSError: the port cannot be had.
        """
        self.prepare().start()

    def stop(self) -> None:
        """Stop answering and release the port. Idempotent."""
        if self._endpoint is not None:
            self._endpoint.stop()

    def prepare(self) -> health.HealthCheckServer:
        """The endpoint that will answer, if it can be had. Raises PluginError."""
        if self._endpoint is None:
            self._endpoint = _make(self._alive_callback, self._port, self._timeout)
        return self._endpoint


def create_healthcheck_server(alive_callback: Callable[[], float], port: int, timeout: Duration) -> HealthCheckServer:
    """A server that was not started yet; arguments as for it. Raises PluginError at once when no endpoint `http` is
    installed."""
    server = HealthCheckServer(alive_callback, port, timeout)
    server.prepare()
    return server


def _make(alive_callback: Callable[[], float], port: int, timeout: Duration) -> health.HealthCheckServer:
    from elastic_core.hooks.manager import PluginManager  # reads what is installed; only needed here
    from elastic_core.hooks.options import type_options
    from elastic_core.hooks.records import HealthEndpointRecord

    record = PluginManager.load(os.environ).select(HealthEndpointRecord, _ENDPOINT)
    options, _ = type_options(record.options, {}, "create_healthcheck_server")
    return record.factory(CallbackView(alive_callback), port, timeout, options)

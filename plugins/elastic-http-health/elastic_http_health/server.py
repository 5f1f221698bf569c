"""The endpoint `http`: a thread of the agent in which a loop answers requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.interfaces.health import HealthCheckServer
from elastic_core.log import get_logger
from elastic_core.support.forks import drop_in_forks, forget
from elastic_http_health.counts import Counts
from elastic_http_health.desk import Desk
from elastic_http_health.listening import address_of, listen, only_loopback
from elastic_http_health.messages import text
from elastic_http_health.options import Options
from elastic_http_health.reception import Reception

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.health import AgentStatus, AgentView
    from elastic_http_health.messages import Request, Response, Waiting

_STOPPED_WITHIN = 5.0  # seconds


class HttpHealthServer(HealthCheckServer):
    """See `interfaces.health.HealthCheckServer`. `start` and `stop` from one thread.

    Args:
        agent: what to tell about.
        port: 0 for any that is free; `port` tells which.
        timeout: seconds without a turn of the agent's loop after which it counts as stuck.
    """

    def __init__(
        self, agent: AgentView, port: int, timeout: Duration, options: Options | None = None, clock: Clock | None = None
    ) -> None:
        self._agent = agent
        self._asked_port = port
        self._timeout = timeout
        self._options = options or Options()
        self._clock = clock or SystemClock()
        self._working: _Work | None = None
        self.counts = Counts()

    @property
    def port(self) -> int:
        """The one that it answers at; the one asked for, while it does not run."""
        return self._working.port if self._working else self._asked_port

    def start(self) -> None:
        """Raises OSError when the port cannot be had, ConfigurationError when there is no such host."""
        limits = self._options.limits
        servers = listen(self._options.host, self._asked_port, limits.backlog)
        with contextlib.ExitStack() as undo:
            for server in servers:
                undo.callback(server.close)
            desk = self._desk(only_loopback(servers))
            work = _Work(self._agent, servers, desk, self._options, self.counts, self._clock)
            undo.callback(work.end)
            work.begin()
            undo.pop_all()
        self._working = work
        get_logger().info(
            "endpoint started",
            endpoint="http",
            addresses=", ".join(address_of(server) for server in servers),
            token="needed" if self._options.token else "none",
        )

    def _desk(self, loopback: bool) -> Desk:
        longest = self._options.limits.wait_seconds
        return Desk(self._agent, self._timeout, self._options.token, loopback, longest, self.counts, self._clock)

    def stop(self) -> None:
        if self._working is not None:
            self._working.end()
            self._working = None


class _Work:
    """From the start to the stop: the sockets, the loop and its thread."""

    def __init__(
        self,
        agent: AgentView,
        servers: list[socket.socket],
        desk: Desk,
        options: Options,
        counts: Counts,
        clock: Clock,
    ) -> None:
        self.port: int = servers[0].getsockname()[1]
        self._agent = agent
        self._servers = servers
        self._desk = desk
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._log_fault)
        self._reception = Reception(self._loop, servers, options.limits, clock, counts, self._answer, self._answer_late)
        self._thread = threading.Thread(target=self._run, name="elastic-http-health", daemon=True)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._faults = 0

    def begin(self) -> None:
        drop_in_forks(self)
        self._unsubscribe = self._agent.subscribe(self._changed)
        self._desk.note(self._agent.status())
        self._thread.start()

    def end(self) -> None:
        """Bounded: no callback of the loop takes long."""
        self._unsubscribe()
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread.ident is None:  # it could not be started
            self._loop.close()
        else:
            self._thread.join(_STOPPED_WITHIN)
        forget(self)

    def drop(self) -> None:
        """In a forked child: keep neither the port nor any connection open."""
        self._reception.drop()

    def _run(self) -> None:
        try:
            self._reception.open()
            self._loop.run_forever()
        finally:
            self._reception.close()
            for server in self._servers:
                server.close()
            self._loop.close()

    def _changed(self) -> None:
        """In the agent's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note, self._agent.status())

    def _note(self, status: AgentStatus) -> None:
        self._desk.note(status)
        self._reception.tell(status.version)

    def _answer(self, request: Request) -> Response | Waiting:
        try:
            return self._desk.answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it was, the endpoint goes on
            return self._failed(request.path, error)

    def _answer_late(self) -> Response:
        """To a request that has waited."""
        try:
            return self._desk.changed()
        except Exception as error:  # noqa: BLE001 - as above
            return self._failed("/changes", error)

    def _failed(self, path: str, error: Exception) -> Response:
        self._tell_fault(f"it could not answer {path!r}", error)
        return text(500, "the health endpoint could not find an answer; the log of the agent says why")

    def _log_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._tell_fault(str(context.get("message")), context.get("exception"))

    def _tell_fault(self, reason: str, error: BaseException | None) -> None:
        """Once: whoever can cause a fault must not fill the log with it."""
        self._faults += 1
        if self._faults == 1:
            get_logger().warning("endpoint failed", endpoint="http", reason=reason, exc_info=error)

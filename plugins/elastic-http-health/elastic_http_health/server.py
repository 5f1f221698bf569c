"""The `http` endpoint. A thread of the agent runs an event loop that answers requests."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from typing import TYPE_CHECKING

from elastic_core.plugin import (
    Address,
    ConfigurationError,
    HealthCheckServer,
    Problem,
    bound_socket,
    drop_in_forks,
    get_logger,
    resolve_host,
    stop_dropping,
)
from elastic_http_health.connections import ConnectionLimit
from elastic_http_health.metrics import Counts
from elastic_http_health.options import ORIGIN, Options
from elastic_http_health.router import Router
from elastic_http_health.tls import Channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from elastic_core.plugin import AgentStatus, AgentView, Duration

_STOPPED_WITHIN = 5.0  # seconds
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


class HttpHealthServer(HealthCheckServer):
    """Implements `interfaces.health.HealthCheckServer`. Call `start` and `stop` from one thread.

    Args:
        agent: the agent.
        port: the port to listen on (0: any free port). While the server runs, the attribute is the actual port.
        timeout: seconds after which an agent whose loop makes no progress is considered stuck.
    """

    def __init__(self, agent: AgentView, port: int, timeout: Duration, options: Options | None = None) -> None:
        self.port = port
        self.counts = Counts()
        self._agent = agent
        self._timeout = timeout
        self._options = options or Options()
        self._sockets: set[socket.socket] = set()  # all open sockets: listening ones and connections
        self._stopping = contextlib.ExitStack()

    def start(self) -> None:
        """Start the server. Raises OSError if the port is not available, and ConfigurationError if the host is
        invalid."""
        options = self._options
        with contextlib.ExitStack() as undo:
            servers = listen(options.host, self.port, options.limits.backlog)
            addresses = [_address(server) for server in servers]
            undo.callback(self.drop)
            self._sockets.update(servers)
            undo.callback(setattr, self, "port", self.port)
            self.port = addresses[0].port
            loopback = all(address.is_loopback for address in addresses)
            names = _names(options, loopback)
            router = Router(self._agent, self._timeout, options, names, loopback, self.counts)
            limit = ConnectionLimit(options.limits, self.counts, self._sockets, router.answer, self._channel)
            self._begin(undo, servers, router, limit)
            self._stopping = undo.pop_all()
        scheme = "https" if options.tls else "http"
        get_logger().info(
            "health endpoint started",
            endpoint="http",
            addresses=", ".join(f"{scheme}://{address}/" for address in addresses),
            token="not required" if options.bearer() is None else "required",
        )
        elsewhere = ", ".join(str(address) for address in addresses if not address.is_loopback)
        for reason in options.exposed(elsewhere):
            get_logger().warning("health endpoint exposed", endpoint="http", reason=reason)

    def stop(self) -> None:
        """Stop the server. Returns promptly, because no callback in the loop blocks for long."""
        self._stopping.close()

    def drop(self) -> None:
        """Close all sockets. Called in a forked child, which must not keep the port or a connection open."""
        while self._sockets:
            self._sockets.pop().close()

    def _channel(self) -> Channel | None:
        return Channel(self._options.tls.now()) if self._options.tls else None

    def _begin(
        self, undo: contextlib.ExitStack, servers: list[socket.socket], router: Router, limit: ConnectionLimit
    ) -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(
            lambda _, context: router.tell_fault(str(context.get("message")), context.get("exception"))
        )
        thread = threading.Thread(target=_run, args=(loop, servers, limit), name="elastic-http-health", daemon=True)

        def note(status: AgentStatus) -> None:
            router.note(status)
            limit.tell(status.version)

        def in_loop(call: Callable[..., None], *arguments: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(call, *arguments)

        undo.callback(stop_dropping, self)
        drop_in_forks(self)
        undo.callback(self._agent.subscribe(lambda: in_loop(note, self._agent.status())))
        router.note(self._agent.status())
        try:
            thread.start()
        except RuntimeError:
            loop.close()
            raise
        undo.callback(thread.join, _STOPPED_WITHIN)
        undo.callback(in_loop, loop.stop)


def _run(loop: asyncio.AbstractEventLoop, servers: list[socket.socket], limit: ConnectionLimit) -> None:
    """Run the event loop until it is stopped. Called in the endpoint's thread."""
    accepting = [loop.create_task(limit.accept(server)) for server in servers]
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(limit.close(accepting))
        loop.close()


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Listen on all local addresses of `host`, with the same port for all (0: any free port).

    Raises:
        OSError: the port is not available; all sockets have been closed.
        ConfigurationError: `host` has no address of this machine.
    """
    made: list[socket.socket] = []
    missing: OSError | None = None
    with contextlib.ExitStack() as undo:
        for address in _addresses(host):
            port = _address(made[0]).port if made else port
            try:
                server = bound_socket(address.family, (address.host, port, *address.sockaddr[2:]))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            undo.callback(server.close)
            server.setblocking(False)
            server.listen(backlog)
            made.append(server)
        if not made:
            raise _bad_host(host, missing) from missing
        undo.pop_all()
    return made


def _addresses(host: str) -> list[Address]:
    try:
        return resolve_host(host, 0)
    except OSError as error:
        raise _bad_host(host, error) from error


def _address(server: socket.socket) -> Address:
    return Address(server.family, server.getsockname())


def _names(options: Options, loopback_only: bool) -> list[str]:
    """Return the names to which a request may be addressed. This machine's host name is allowed only if the endpoint
    can be reached from a network, because the name itself may come from an untrusted network."""
    own = [] if loopback_only else [socket.gethostname()]
    return ["localhost", "*.localhost", *(name.lower() for name in (options.host, *own)), *options.allowed_hosts]


def _bad_host(host: str, error: OSError | None) -> ConfigurationError:
    words = (
        f"host: cannot listen on {host!r}: {error and error.strerror}; use an address or name of this machine, "
        "127.0.0.1 for local requests only, 0.0.0.0 for all IPv4 addresses, or :: for all addresses"
    )
    return ConfigurationError(Problem(ORIGIN, words))

"""Accepts and serves connections, with limits on their rate, number, duration and data.

Clients that exceed the rate wait in the kernel, at no cost to the agent. When the maximum number of connections is
open, the next connection replaces the one that has been idle longest, so that idle clients cannot block a probe. The
limits also restrict how long a client can keep a connection open, and how much data the endpoint reads from it. All of
this code runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import itertools
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_http_health.messages import Exchange, Request, Response, Waiting

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from elastic_core.plugin import Duration
    from elastic_http_health.metrics import Counts
    from elastic_http_health.options import Limits
    from elastic_http_health.tls import Channel

_AT_A_TURN = 4  # connections accepted in a batch at the rate limit, to save wakeups of the event loop
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 1.0  # seconds without accepting connections when the process is out of descriptors or memory
_MOMENT = 0.02  # seconds without accepting connections after a change of the agent's status
_LONGEST_MOMENT = 0.2  # maximum length of this pause if further changes follow
_PIECE = 4096
_REST_PIECE = 65536
_FREE_READS = 2  # the number of reads that a well-behaved client's request needs
_FREE_READS_TLS = 6  # the same, including the TLS handshake


class RateLimit:
    """A rate limit that allows bursts after idle periods."""

    def __init__(self, rate: float, burst: float) -> None:
        self._step = 1 / rate
        self._slack = (burst - 1) / rate
        self._next = 0.0

    def take(self, now: float) -> Duration:
        """Take one permit and return 0. If none is available, return the number of seconds until one becomes
        available."""
        if now < self._next - self._slack:
            return self._next - self._slack - now
        self._next = max(self._next, now) + self._step
        return 0.0


class Stage(enum.IntEnum):
    """The stage of a connection. Connections in earlier stages are evicted first."""

    ENDING = 0
    READING = 1
    WAITING = 2
    WRITING = 3
    CLOSED = 4


class ConnectionLimit:
    """Accepts a limited number of connections, keeps track of them, and calls `answer` for each request.

    Args:
        sockets: a set to which each connection's socket is added while it is open.
        channel: creates a connection's TLS channel, or returns None for plain HTTP.
    """

    def __init__(
        self,
        limits: Limits,
        counts: Counts,
        sockets: set[socket.socket],
        answer: Callable[[Request], Response | Waiting],
        channel: Callable[[], Channel | None] = lambda: None,
    ) -> None:
        self.limits = limits
        self.counts = counts
        self.channel = channel
        self._answer = answer
        self._places = asyncio.Semaphore(limits.connections)
        self._rate = RateLimit(limits.rate, limits.burst)
        self._spare_reads = RateLimit(limits.spare_reads, limits.spare_reads)
        self._sockets = sockets
        self._connections: dict[Connection, None] = {}  # oldest first
        self._busy_until = 0.0

    async def accept(self, server: socket.socket) -> None:
        """Accept connections until this task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._keep_the_rate(loop)
            try:
                link, _address = await loop.sock_accept(server)
            except OSError as error:  # out of resources, or the client has already disconnected
                if error.errno in _NO_ROOM:
                    await asyncio.sleep(_PAUSE)
                continue
            self._sockets.add(link)
            await self._give_way(loop)
            if self._places.locked() and self._connections:
                min(self._connections, key=lambda each: each.stage).close("evicted")  # the oldest of that stage
            await self._places.acquire()
            connection = Connection(loop, link, self)
            self._connections[connection] = None
            self.counts.accepted += 1
            self.counts.connections = len(self._connections)
            self.counts.most_connections = max(self.counts.most_connections, self.counts.connections)

    async def close(self, accepting: Iterable[asyncio.Task[None]]) -> None:
        """Cancel the accepting tasks and close all connections."""
        tasks = [*accepting, *(connection.task for connection in self._connections)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tell(self, change: int) -> None:
        """Answer the requests that wait for a change of the agent's status. New connections are then delayed for a
        moment, because the agent is busy and needs the interpreter."""
        self._busy_until = asyncio.get_running_loop().time() + _MOMENT
        for connection in self._connections:
            connection.wake(change)

    def answer(self, request: Request) -> Response | Waiting:
        waiting = sum(connection.stage is Stage.WAITING for connection in self._connections)
        return self._answer(request if waiting < self.limits.waiting else replace(request, may_wait=False))

    def may_read_again(self) -> bool:
        """Return whether a client may use one more read than most clients need."""
        return self._spare_reads.take(asyncio.get_running_loop().time()) == 0

    def left(self, connection: Connection) -> None:
        """Stop tracking a connection that is about to be closed."""
        del self._connections[connection]
        self._sockets.discard(connection.link)
        self._places.release()
        self.counts.connections = len(self._connections)
        if connection.closed_because:
            self.counts.closed[connection.closed_because] += 1

    async def _keep_the_rate(self, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.sleep(0)  # let open connections run first
        while (wait := self._rate.take(loop.time())) > 0:
            await asyncio.sleep(wait + min(_MOMENT, (_AT_A_TURN - 1) / self.limits.rate))

    async def _give_way(self, loop: asyncio.AbstractEventLoop) -> None:
        longest = loop.time() + _LONGEST_MOMENT
        while (wait := min(self._busy_until, longest) - loop.time()) > 0:
            await asyncio.sleep(wait)


class Connection:
    """Serves one connection: reads a request, waits if the request asks for it, and writes the response.
    `closed_because` is empty if the connection ended normally."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: socket.socket, limit: ConnectionLimit) -> None:
        self.link = link
        self.stage = Stage.READING
        self.closed_because = ""
        self._loop = loop
        self._limit = limit
        channel = limit.channel()
        self._exchange = Exchange(limit.limits.head_bytes, channel)
        self._free_reads = _FREE_READS_TLS if channel else _FREE_READS
        self._writer: asyncio.StreamWriter | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._listening: asyncio.Future[bytes] | None = None  # while it waits
        self._change = 0
        self._enter(Stage.READING, limit.limits.head_seconds, self.close, "head timeout")
        self.task = loop.create_task(self._serve())
        self.task.add_done_callback(self._end)  # a callback, because `_serve` may be cancelled before it starts

    def close(self, why: str) -> None:
        """Close the connection early, for the reason `why`. Idempotent."""
        if self.stage is not Stage.CLOSED:
            self.closed_because = "" if self.stage is Stage.ENDING else why
            self.stage = Stage.CLOSED
            self.task.cancel()

    def wake(self, change: int) -> None:
        """Stop waiting if the version of the agent's status differs from the version in the request."""
        if self._listening and change != self._change:
            self._listening.cancel()

    async def _serve(self) -> None:
        try:
            reader, self._writer = await asyncio.open_connection(sock=self.link, limit=_PIECE)
            found = await self._read(reader, self._writer)
            answer = found if isinstance(found, Response) else await self._answer(reader, found)
            await self._write(self._writer, answer)
            if isinstance(found, Response) or self._exchange.rest:
                await self._discard(reader, self._writer)
        except ssl.SSLError:
            self.close("no TLS")
        except OSError:
            self.close("gone")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | Response:
        """Read a request. Returns the error response if the request is invalid."""
        for count in itertools.count(1):
            if not (data := await reader.read(_PIECE)):
                break
            if count > self._free_reads and not self._limit.may_read_again():
                self.close("too many pieces")
                break
            try:
                found = self._exchange.receive(data)
            finally:  # even on errors, because TLS may have an alert to send
                writer.write(self._exchange.reply())
            if found:
                return found
        raise ConnectionError

    async def _answer(self, reader: asyncio.StreamReader, request: Request) -> Response:
        while isinstance(answer := self._limit.answer(request), Waiting):
            await self._wait(reader, answer)
            request = replace(request, may_wait=False)
        return answer

    async def _wait(self, reader: asyncio.StreamReader, waiting: Waiting) -> None:
        """Wait for a change of the status or the timeout. Raises ConnectionError if the client disconnects or sends
        more data."""
        self._change = waiting.change
        self._listening = asyncio.ensure_future(reader.read(1))
        self._enter(Stage.WAITING, waiting.seconds, self._listening.cancel)
        (heard,) = await asyncio.gather(self._listening, return_exceptions=True)
        self._listening = None
        if not isinstance(heard, asyncio.CancelledError):
            raise ConnectionError

    async def _write(self, writer: asyncio.StreamWriter, answer: Response) -> None:
        self._enter(Stage.WRITING, self._limit.limits.answer_seconds, self.close, "answer timeout")
        writer.transport.set_write_buffer_limits(0)  # so that `drain` waits until the kernel has taken everything
        self._limit.counts.answers[answer.status] += 1
        writer.write(self._exchange.send(answer))
        await writer.drain()

    async def _discard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read and discard the data after the request. If the socket were closed with unread data, the connection would
        be reset, and the client could lose the response."""
        self._enter(Stage.ENDING, self._limit.limits.rest_seconds, self.close, "")
        writer.write_eof()
        rest = self._limit.limits.rest_bytes
        while rest > 0 and (data := await reader.read(_REST_PIECE)) and self._limit.may_read_again():
            rest -= len(data)

    def _enter(self, stage: Stage, seconds: Duration, at_deadline: Callable[..., object], *arguments: str) -> None:
        """Enter a stage that may last `seconds`, and then call `at_deadline`."""
        if self._deadline:
            self._deadline.cancel()
        self.stage = stage
        self._deadline = self._loop.call_later(seconds, at_deadline, *arguments)

    def _end(self, _task: asyncio.Task[None]) -> None:
        if self._deadline:
            self._deadline.cancel()
        self._limit.left(self)  # before the client can notice
        if self._writer:
            self._writer.transport.abort()
        self.link.close()

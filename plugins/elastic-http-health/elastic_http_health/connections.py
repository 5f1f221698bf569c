"""Connections: how fast and how many are accepted, and each of them from its first byte to its last.

Clients that come faster than the rate wait in the kernel, where that costs the agent nothing. When all places are taken
the connection that has been idle for longest is closed for the next one, so silent clients never keep a probe out.
Nothing that a client does or leaves undone keeps a connection open for longer than the limits say, or has it read more.
All of this happens in the thread of the loop.
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

_AT_A_TURN = 4  # accepted at a time where more come than the rate allows: what the loop does seldom costs less
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 1.0  # seconds without accepting when the process has no room for one more
_MOMENT = 0.02  # seconds in which nobody is let in after a change of the agent
_LONGEST_MOMENT = 0.2  # the same, however many changes follow
_PIECE = 4096
_REST_PIECE = 65536
_FREE_READS = 2  # how many pieces a head of an honest client has
_FREE_READS_TLS = 6  # the same with the client's parts of a handshake before it


class Pace:
    """So many per second, and a burst after a quiet time."""

    def __init__(self, rate: float, burst: float) -> None:
        self._step = 1 / rate
        self._slack = (burst - 1) / rate
        self._next = 0.0

    def take(self, now: float) -> Duration:
        """0 if one more may come now. If not, nothing is taken, and the seconds until then are returned."""
        if now < self._next - self._slack:
            return self._next - self._slack - now
        self._next = max(self._next, now) + self._step
        return 0.0


class Stage(enum.IntEnum):
    """What a connection does; in the order in which it may be given up for another one."""

    ENDING = 0
    READING = 1
    WAITING = 2
    WRITING = 3
    CLOSED = 4


class ConnectionLimit:
    """Accepts connections and keeps the list of them; `answer` is called for each request.

    Args:
        sockets: those of connections are added while they are open.
        channel: makes the TLS of a connection; None for one without.
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
        self._rate = Pace(limits.rate, limits.burst)
        self._spare_reads = Pace(limits.spare_reads, limits.spare_reads)
        self._sockets = sockets
        self._connections: dict[Connection, None] = {}  # oldest first
        self._busy_until = 0.0

    async def accept(self, server: socket.socket) -> None:
        """Until this is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._keep_the_rate(loop)
            try:
                link, _address = await loop.sock_accept(server)
            except OSError as error:  # there is no room, or the client is gone already
                if error.errno in _NO_ROOM:
                    await asyncio.sleep(_PAUSE)
                continue
            self._sockets.add(link)
            await self._give_way(loop)
            if self._places.locked() and self._connections:
                min(self._connections, key=lambda each: each.stage).close("evicted")  # the oldest of equal ones
            await self._places.acquire()
            connection = Connection(loop, link, self)
            self._connections[connection] = None
            self.counts.accepted += 1
            self.counts.connections = len(self._connections)
            self.counts.most_connections = max(self.counts.most_connections, self.counts.connections)

    async def close(self, accepting: Iterable[asyncio.Task[None]]) -> None:
        """End these and all connections."""
        tasks = [*accepting, *(connection.task for connection in self._connections)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tell(self, change: int) -> None:
        """The agent has changed: those who wait for that are answered. Nobody is let in for a moment, for now the agent
        is at work and needs the interpreter for itself."""
        self._busy_until = asyncio.get_running_loop().time() + _MOMENT
        for connection in self._connections:
            connection.wake(change)

    def answer(self, request: Request) -> Response | Waiting:
        waiting = sum(connection.stage is Stage.WAITING for connection in self._connections)
        return self._answer(request if waiting < self.limits.waiting else replace(request, may_wait=False))

    def may_read_again(self) -> bool:
        """Whether a client may send one piece more than most need."""
        return self._spare_reads.take(asyncio.get_running_loop().time()) == 0

    def left(self, connection: Connection) -> None:
        """It is about to be closed."""
        del self._connections[connection]
        self._sockets.discard(connection.link)
        self._places.release()
        self.counts.connections = len(self._connections)
        if connection.closed_because:
            self.counts.closed[connection.closed_because] += 1

    async def _keep_the_rate(self, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.sleep(0)  # those who are in already have their turn in any case
        while (wait := self._rate.take(loop.time())) > 0:
            await asyncio.sleep(wait + min(_MOMENT, (_AT_A_TURN - 1) / self.limits.rate))

    async def _give_way(self, loop: asyncio.AbstractEventLoop) -> None:
        longest = loop.time() + _LONGEST_MOMENT
        while (wait := min(self._busy_until, longest) - loop.time()) > 0:
            await asyncio.sleep(wait)


class Connection:
    """Reads a request, waits if that is asked for, writes the answer. `closed_because` is empty for the usual end."""

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
        self.task.add_done_callback(self._end)  # not at the end of `_serve`, which may be cancelled before it begins

    def close(self, why: str) -> None:
        """Give it up. Idempotent."""
        if self.stage is not Stage.CLOSED:
            self.closed_because = "" if self.stage is Stage.ENDING else why
            self.stage = Stage.CLOSED
            self.task.cancel()

    def wake(self, change: int) -> None:
        """The agent's status is this change now."""
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
        """The request, or the answer to something that is none."""
        for count in itertools.count(1):
            if not (data := await reader.read(_PIECE)):
                break
            if count > self._free_reads and not self._limit.may_read_again():
                self.close("too many pieces")
                break
            try:
                found = self._exchange.receive(data)
            finally:  # also to say what is wrong
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
        """For a change or the end of the time; raises ConnectionError for a client that leaves or talks meanwhile."""
        self._change = waiting.change
        self._listening = asyncio.ensure_future(reader.read(1))
        self._enter(Stage.WAITING, waiting.seconds, self._listening.cancel)
        (heard,) = await asyncio.gather(self._listening, return_exceptions=True)
        self._listening = None
        if not isinstance(heard, asyncio.CancelledError):
            raise ConnectionError

    async def _write(self, writer: asyncio.StreamWriter, answer: Response) -> None:
        self._enter(Stage.WRITING, self._limit.limits.answer_seconds, self.close, "answer timeout")
        writer.transport.set_write_buffer_limits(0)  # so that it is all with the kernel once it has drained
        self._limit.counts.answers[answer.status] += 1
        writer.write(self._exchange.send(answer))
        await writer.drain()

    async def _discard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read what the client sends behind its request: to close with such bytes unread would take the answer from
        it."""
        self._enter(Stage.ENDING, self._limit.limits.rest_seconds, self.close, "")
        writer.write_eof()
        rest = self._limit.limits.rest_bytes
        while rest > 0 and (data := await reader.read(_REST_PIECE)) and self._limit.may_read_again():
            rest -= len(data)

    def _enter(self, stage: Stage, seconds: Duration, at_deadline: Callable[..., object], *arguments: str) -> None:
        """Do this from now on, for so many seconds at most."""
        if self._deadline:
            self._deadline.cancel()
        self.stage = stage
        self._deadline = self._loop.call_later(seconds, at_deadline, *arguments)

    def _end(self, _task: asyncio.Task[None]) -> None:
        if self._deadline:
            self._deadline.cancel()
        self._limit.left(self)  # before the client can know of it
        if self._writer:
            self._writer.transport.abort()
        self.link.close()

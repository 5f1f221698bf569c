"""One connection until it is closed: reads a request, waits if that is asked for, writes the answer.

Nothing that a client does or leaves undone keeps it open for longer than the limits say, or has it read more.
"""

from __future__ import annotations

import contextlib
import enum
import socket
from typing import TYPE_CHECKING, Protocol

from elastic_http_health.messages import Request, Response, Waiting

if TYPE_CHECKING:
    import asyncio

    from elastic_http_health.exchange import Exchange
    from elastic_http_health.limits import Limits

_PIECE = 4096
_REST_PIECE = 65536
_FREE_READS = 2  # how many pieces a head of an honest client has


class Stage(enum.Enum):
    """What a connection does; in the order in which it may be given up for another one."""

    ENDING = 0
    READING = 1
    WAITING = 2
    WRITING = 3
    CLOSED = 4


class Host(Protocol):
    """Whose guest a connection is."""

    def answer(self, request: Request) -> Response | Waiting: ...

    def may_wait(self) -> bool:
        """Whether one more may wait for a change."""
        ...

    def may_read_again(self) -> bool:
        """Whether a head may have one piece more."""
        ...

    def changed(self) -> Response:
        """What those who waited are answered."""
        ...

    def answered(self, status: int) -> None: ...

    def left(self, connection: Connection, why: str) -> None:
        """It is closed; `why` is empty for the usual end."""
        ...


class Connection:
    """In the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, link: socket.socket, exchange: Exchange, limits: Limits, host: Host
    ) -> None:
        self._loop = loop
        self.link = link
        self._exchange = exchange
        self._limits = limits
        self._host = host
        self._reads = 0
        self._rest = limits.rest_bytes
        self._refused = False
        self._unsent = memoryview(b"")
        self._deadline: asyncio.TimerHandle | None = None
        self.change = 0
        self.stage = Stage.READING

    def begin(self) -> None:
        """Read what is there already."""
        self._bound(self._limits.head_seconds, "head timeout")
        self._readable()
        if self.stage in (Stage.READING, Stage.WAITING):  # most requests are there at once, and need no reader
            self._loop.add_reader(self.link, self._readable)

    def wake(self) -> None:
        """What it waits for is there."""
        if self.stage is Stage.WAITING:
            self._respond(self._host.changed())

    def close(self, why: str = "") -> None:
        """Idempotent."""
        if self.stage is Stage.CLOSED:
            return
        why = "" if self.stage is Stage.ENDING else why
        self.stage = Stage.CLOSED
        self._bound(None)
        self._loop.remove_reader(self.link)
        self._loop.remove_writer(self.link)
        self._host.left(self, why)  # before the client can know of it
        self.link.close()

    def _readable(self) -> None:
        try:
            data = self.link.recv(_PIECE)
        except BlockingIOError:
            return None
        except OSError:
            return self.close("gone")
        if not data or self.stage is not Stage.READING:  # gone, or it talks although it should wait
            return self.close("gone")
        self._reads += 1
        if self._reads > _FREE_READS and not self._host.may_read_again():
            return self.close("too many pieces")
        self._proceed(self._exchange.receive(data))
        return None

    def _proceed(self, found: Request | Response | None) -> None:
        self._refused = isinstance(found, Response)
        answer = self._host.answer(found) if isinstance(found, Request) else found
        if isinstance(answer, Waiting):
            self._wait(answer)
        elif answer is not None:
            self._respond(answer)

    def _wait(self, wish: Waiting) -> None:
        if wish.seconds <= 0 or not self._host.may_wait():
            return self._respond(self._host.changed())
        self.stage, self.change = Stage.WAITING, wish.change
        self._bound(None)
        self._deadline = self._loop.call_later(wish.seconds, self.wake)
        return None

    def _respond(self, response: Response) -> None:
        self.stage = Stage.WRITING
        self._loop.remove_reader(self.link)
        self._bound(self._limits.answer_seconds, "answer timeout")
        self._unsent = memoryview(self._exchange.send(response))
        self._host.answered(response.status)
        self._writable()

    def _writable(self) -> None:
        try:
            sent = self.link.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            return self.close("gone")
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._end()
            return None
        self._loop.add_writer(self.link, self._writable)
        return None

    def _end(self) -> None:
        """Close it, but not on bytes that nobody has read: for them the client would lose the answer."""
        self.stage = Stage.ENDING
        self._loop.remove_writer(self.link)
        with contextlib.suppress(OSError):  # the client is gone, which reading tells
            self.link.shutdown(socket.SHUT_WR)
        more = self._drain()
        if not (more or self._refused):  # a request without a body, and all of it was read
            self.close()
        if self.stage is Stage.ENDING:
            self._bound(self._limits.rest_seconds)
            self._loop.add_reader(self.link, self._drain_more)

    def _drain_more(self) -> None:
        if self._host.may_read_again():
            self._drain()
        else:
            self.close()

    def _drain(self) -> bool:
        """Throw away what has come; close it if that was too much, or all. Returns whether there was something."""
        try:
            data = self.link.recv(_REST_PIECE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._rest -= len(data)
        if not data or self._rest <= 0:
            self.close()
        return bool(data)

    def _bound(self, seconds: float | None, why: str = "") -> None:
        """Close it after so many seconds from now, instead of whatever was to be done before."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self.close, why)

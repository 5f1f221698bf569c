"""Lets clients in, no faster and no more of them than the limits allow, and keeps the list of who is there.

Who comes faster waits in the kernel, where that costs the agent nothing. When all places are taken, the one that has
sent no request for longest gives way: so silent clients never keep a probe out.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_http_health.bucket import Bucket
from elastic_http_health.connection import Connection, Stage
from elastic_http_health.exchange import Exchange

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from elastic_core.clock import Clock
    from elastic_http_health.counts import Counts
    from elastic_http_health.limits import Limits
    from elastic_http_health.messages import Request, Response, Waiting

_AT_A_TURN = 4  # connections accepted before anything else has its turn
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MOMENT = 0.02  # seconds without accepting when the agent has something to do
_LONGEST_MOMENT = 0.2  # the same, however much that is
_PAUSE = 1.0  # seconds without accepting when the process has no room for one more


class Reception:
    """In the loop's thread. `respond` answers requests, `changed` those that have waited."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        servers: list[socket.socket],
        limits: Limits,
        clock: Clock,
        counts: Counts,
        respond: Callable[[Request], Response | Waiting],
        changed: Callable[[], Response],
    ) -> None:
        self._loop = loop
        self._servers = servers
        self._limits = limits
        self._clock = clock
        self._counts = counts
        self.answer = respond
        self.changed = changed
        self._door = Bucket(limits.rate, limits.burst, clock.now())
        self._spare_reads = Bucket(limits.spare_reads, limits.spare_reads, clock.now())
        self._guests: dict[Connection, None] = {}  # oldest first
        self._reopening: asyncio.TimerHandle | None = None
        self._shut_at = clock.now()

    def open(self) -> None:
        """Let clients in from now on."""
        for server in self._servers:
            self._loop.add_reader(server, self._accept, server)

    def close(self) -> None:
        """Let nobody in any more, and send everybody away."""
        self._shut()
        if self._reopening is not None:
            self._reopening.cancel()
        for guest in list(self._guests):
            guest.close()

    def drop(self) -> None:
        """Close all sockets and nothing else: in a forked child, where the loop does not run."""
        for link in [*self._servers, *(guest.link for guest in self._guests)]:
            link.close()

    def tell(self, change: int) -> None:
        """The agent has changed: answer those who wait for that. Nobody is let in for a moment, for now the agent is at
        work and needs the interpreter for itself."""
        self._give_way()
        for guest in [guest for guest in self._guests if guest.stage is Stage.WAITING and guest.change != change]:
            guest.wake()

    def may_wait(self) -> bool:
        return self._in(Stage.WAITING) < self._limits.waiting

    def may_read_again(self) -> bool:
        return self._spare_reads.take(self._clock.now()) == 0

    def answered(self, status: int) -> None:
        self._counts.answered(status)

    def left(self, connection: Connection, why: str) -> None:
        self._guests.pop(connection, None)
        self._counts.left(len(self._guests), why)

    def _accept(self, server: socket.socket) -> None:
        for _ in range(_AT_A_TURN):
            wait = self._door.take(self._clock.now())
            if wait > 0:  # not for each token: what the loop does seldom costs less
                return self._pause(wait + min(_MOMENT, (_AT_A_TURN - 1) / self._limits.rate))
            try:
                link, _address = server.accept()
            except OSError as error:  # nobody is there any more, or there is no room
                self._door.put_back()
                return self._pause(_PAUSE) if error.errno in _NO_ROOM else None
            self._welcome(link)
        return None

    def _welcome(self, link: socket.socket) -> None:
        link.setblocking(False)
        if len(self._guests) >= self._limits.connections:
            self._oldest_idle().close("evicted")
        guest = Connection(self._loop, link, Exchange(self._limits), self._limits, self)
        self._guests[guest] = None
        self._counts.came(len(self._guests))
        guest.begin()

    def _oldest_idle(self) -> Connection:
        return min(self._guests, key=lambda guest: guest.stage.value)  # the first, that is the oldest, of equal ones

    def _in(self, stage: Stage) -> int:
        return sum(guest.stage is stage for guest in self._guests)

    def _give_way(self) -> None:
        now = self._clock.now()
        if self._reopening is None:
            self._shut_at = now
        self._pause(max(0.0, min(_MOMENT, later(self._shut_at, _LONGEST_MOMENT) - now)))

    def _pause(self, seconds: float) -> None:
        self._shut()
        if self._reopening is not None:
            seconds = max(seconds, self._reopening.when() - self._loop.time())
            self._reopening.cancel()
        self._reopening = self._loop.call_later(seconds, self._reopen)

    def _reopen(self) -> None:
        """However often it is shut, somebody is let in each time it opens."""
        self._reopening = None
        self.open()
        for server in self._servers:
            self._accept(server)

    def _shut(self) -> None:
        for server in self._servers:
            with contextlib.suppress(ValueError):  # it is closed
                self._loop.remove_reader(server)

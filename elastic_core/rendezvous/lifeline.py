"""Lifelines: how an agent learns at once that another one has ended, over no store and with nobody who has to tell it.

Each agent listens at a port of its own and accepts nothing. A member of a round connects to the next one. A machine
completes the connection by itself, and ends it when the last holder of the listening socket has gone: the agent, or the
guardian, which holds it until the workers of a killed agent are gone. Neither side ever sends anything.

That a connection has ended means nothing yet, nor that no other can be made: a link may be cut. A machine that then
*refuses* one says that it lives, and that nobody listens there any more. Only that counts, and only from where a
connection was made before.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from elastic_core.support.forks import drop_in_forks
from elastic_core.support.sockets import bind_at, keep_open, resolve_host, unbound

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration
    from elastic_core.rendezvous.seats import Seat

_ANSWER: Duration = 2.0  # seconds for the other machine to answer
_QUIET = 60  # seconds after which the kernels exchange a packet: firewalls forget connections without any
_MOST_ENDS = 8  # of connections to one seat: something else ends them
_WAITING = 64  # connections that may wait to be accepted, which none is


class Lifeline:
    """One agent's own lifeline, and its watch over that of another.

    Args:
        watched: whom to watch, asked whenever that may have changed; None: nobody.
        lost: called with the key of an agent that has ended, from a thread of its own.
    """

    def __init__(self, watched: Callable[[], Seat | None], lost: Callable[[str], None]) -> None:
        self._watched = watched
        self._lost = lost
        self._own = unbound()
        self._open = False
        self._changed = threading.Condition()
        self._seat: Seat | None = None
        self._turn = self._taken = 0  # grows with whom it watches; the last one that the thread has taken up
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        drop_in_forks(self)

    @property
    def descriptor(self) -> int:
        """Of the socket that ends with the agent; -1 if there is none."""
        return -1 if self._own is None else self._own.fileno()

    def listen(self, address: str) -> int:
        """Listen there, if it does not yet; connections from before are ended, and made anew by who watches. Returns
        the port, 0 if there is none: then the others miss this agent as they miss a machine."""
        if self._own is None or self._closed:
            return 0
        try:
            if not self._open:
                bind_at(self._own, address)
                self._own.listen(_WAITING)
                self._own.setblocking(False)
                self._open = True
            self._turn_away(self._own)
            return int(self._own.getsockname()[1])
        except OSError:
            return 0

    def _turn_away(self, own: socket.socket) -> None:
        """Otherwise connections of who has gone would fill the places."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_WAITING + 1):
                own.accept()[0].close()

    def look(self) -> None:
        """Watch whoever is to be watched now. Returns at once."""
        with self._changed:
            seat = None if self._closed else self._watched()
            if seat == self._seat:
                return
            self._seat = seat
            self._turn += 1
            self._let_go()
            if self._thread is None and seat is not None:
                self._begin()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name="rendezvous-lifeline", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started: the beats tell
            thread.start()
            self._thread = thread

    def close(self) -> None:
        """Watch nobody, and listen no longer. Idempotent."""
        with self._changed:
            self._closed, self._seat = True, None
            self._turn += 1
            self._let_go()
        if self._own is not None:
            self._own.close()

    def drop(self) -> None:
        """This is a forked child, which must not hold what ends with its parent."""
        self._changed, self._thread, self._closed = threading.Condition(), None, True
        for held in (self._own, self._connection):
            if held is not None:
                held.close()

    def _let_go(self) -> None:
        """End the connection; its thread wakes."""
        self._changed.notify_all()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    # -- the thread

    def _run(self) -> None:
        met = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._turn != self._taken or self._closed)
                turn, seat = self._turn, self._seat
                self._taken = turn
                if self._closed:
                    return
            if seat is not None:
                met = self._follow(seat, turn, met)

    def _follow(self, seat: Seat, turn: int, met: str) -> str:
        """Until it has ended, or there is no telling, or another is to be watched. Returns the key of the last one to
        whom a connection was made."""
        for _ in range(_MOST_ENDS):
            try:
                self._hold(seat, turn)
                met = seat.key
            except ConnectionRefusedError:
                if met == seat.key:
                    self._lost(seat.key)
                break
            except OSError:
                break
            if self._turn != turn:
                break
        return met

    def _hold(self, seat: Seat, turn: int) -> None:
        """Connect, and wait for the end of the connection. Raises OSError if none can be made."""
        address = resolve_host(seat.member.address, seat.lifeline)[0]
        with socket.socket(address.family, socket.SOCK_STREAM) as made:
            made.settimeout(_ANSWER)
            keep_open(made, _QUIET)
            made.connect(address.sockaddr)
            made.settimeout(None)
            with self._changed:
                if self._turn != turn:
                    return
                self._connection = made
            try:
                with contextlib.suppress(OSError):
                    made.recv(1)
            finally:
                with self._changed:
                    self._connection = None

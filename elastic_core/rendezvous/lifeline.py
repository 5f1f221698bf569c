"""Lifelines: connections that show an agent, immediately and without the store, that another agent has ended.

Each agent listens on its own port, but never accepts a connection. Each member of a round connects to the next member's
port. The kernel completes the connection, and closes it when the last process that has the listening socket open has
ended. That process is the agent or, if the agent was killed, its guardian. The guardian keeps the socket open until the
agent's workers have ended. Neither side sends anything.

A closed connection proves nothing, and neither does a failed attempt to reconnect, because the network may be down. But
if the machine *refuses* the new connection, the machine is running and no process is listening on the port any more.
Only such a refusal is treated as proof, and only if this agent was connected to the machine before.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from elastic_core.support.processes import drop_in_forks
from elastic_core.support.sockets import bind_at, keep_open, resolve_host, unbound

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Duration
    from elastic_core.rendezvous.model import RoundId, Seat
    from elastic_core.support.sockets import Address

    Target = tuple[Seat, RoundId]
    Resolve = Callable[[str, int], list[Address]]

_ANSWER: Duration = 2.0  # seconds that the other machine has to answer
_QUIET = 60  # seconds between the kernels' keepalive packets, because firewalls drop idle connections
_MOST_ENDS = 8  # the number of connections to a member that may end in one round before this agent stops watching it
_WAITING = 64  # the length of the queue of incoming connections, which are never accepted


class Lifeline:
    """An agent's own lifeline, and its connection to the lifeline of another agent.

    Args:
        watched: returns the member to watch and the round, or None.
        lost: called in a separate thread with the key of an agent that has ended.
        resolve: returns the addresses of a host and a port.
    """

    def __init__(
        self, watched: Callable[[], Target | None], lost: Callable[[str], None], resolve: Resolve = resolve_host
    ) -> None:
        self._watched = watched
        self._lost = lost
        self._resolve = resolve
        self._own = unbound()
        self._open = False
        self._changed = threading.Condition()
        self._target: Target | None = None
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        drop_in_forks(self)

    @property
    def descriptor(self) -> int:
        """The descriptor of the listening socket; -1 if there is none."""
        return -1 if self._own is None else self._own.fileno()

    def listen(self, address: str) -> int:
        """Listen on the address, and close older connections to make the watching agent reconnect. Returns the port, or
        0 on failure. After a failure, only missing heartbeats show that this agent has ended."""
        if self._own is None or self._closed:
            return 0
        try:
            if not self._open:
                bind_at(self._own, address)
                self._own.listen(_WAITING)
                self._own.setblocking(False)
                self._open = True
            with contextlib.suppress(BlockingIOError):
                for _ in range(_WAITING + 1):  # otherwise connections from nodes that have left would fill the queue
                    self._own.accept()[0].close()
            return int(self._own.getsockname()[1])
        except OSError:
            return 0

    def look(self) -> None:
        """Watch the member that this agent should watch now, instead of any earlier one. Returns immediately."""
        with self._changed:
            target = None if self._closed else self._watched()
            if target == self._target:
                return
            self._target = target
            self._let_go()
            if self._thread is None and target is not None:
                thread = threading.Thread(target=self._run, name="rendezvous-lifeline", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Stop watching and listening. Idempotent."""
        with self._changed:
            self._closed, self._target = True, None
            self._let_go()
        if self._own is not None:
            self._own.close()

    def drop(self) -> None:
        """Close the sockets in a forked child, which must not keep its parent's sockets open."""
        self._changed, self._thread, self._closed = threading.Condition(), None, True
        for held in (self._own, self._connection):
            if held is not None:
                held.close()

    def _let_go(self) -> None:
        self._changed.notify_all()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    # -- the thread

    def _run(self) -> None:
        met = ""
        target: Target | None = None
        while not self._closed:
            if target is not None:
                met = self._follow(target, met)
            with self._changed:
                while self._target is target and not self._closed:
                    self._changed.wait()
                target = self._target

    def _follow(self, target: Target, met: str) -> str:
        """Watch a member until its agent has ended, this agent gives up, or this agent has to watch another member.
        Returns the key of the last member to which this agent was connected."""
        seat = target[0]
        for _ in range(_MOST_ENDS):
            try:
                self._hold(target)
                met = seat.key
            except ConnectionRefusedError:
                if met == seat.key:
                    self._lost(seat.key)
                break
            except ConnectionResetError:
                pass  # the other agent closed its socket while the kernel completed the connection; try again
            except OSError:
                break
            if self._target is not target:
                break
        return met

    def _hold(self, target: Target) -> None:
        """Connect to the member, and wait until the connection ends. Raises OSError if the attempt to connect fails."""
        seat, _ = target
        address = self._resolve(seat.member.address, seat.lifeline)[0]
        with socket.socket(address.family, socket.SOCK_STREAM) as made:
            made.settimeout(_ANSWER)
            keep_open(made, _QUIET)
            made.connect(address.sockaddr)
            made.settimeout(None)
            with self._changed:
                if self._target is not target:
                    return
                self._connection = made
            try:
                with contextlib.suppress(OSError):
                    made.recv(1)
            finally:
                with self._changed:
                    self._connection = None

"""The inbox: one place where the agent waits for everything, so that nothing is polled and nothing blocks a signal."""

from __future__ import annotations

import collections
import os
import select
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection

    from elastic_core.clock import Clock, Instant
    from elastic_core.interfaces.handler import RendezvousInfo
    from elastic_core.interfaces.watchdog import Expiry

_LONGEST_WAIT = 3600.0  # seconds; a bound, so that a lost wake-up costs an hour and not for ever


@dataclass(frozen=True)
class Signalled:
    """The agent's process received a signal that asks it to leave. `at`: when it came; the agent may take it long after
    that."""

    signum: signal.Signals
    at: Instant


@dataclass(frozen=True)
class Joined:
    """`next_rendezvous` has come back, with a round or an error."""

    outcome: RendezvousInfo | BaseException


@dataclass(frozen=True)
class TimerExpired:
    """A watchdog found a worker that hangs."""

    expiry: Expiry


@dataclass(frozen=True)
class RoundChanged:
    """The handler has news of the round: its verdict may be another."""


Item = Signalled | Joined | TimerExpired | RoundChanged


class Inbox:
    """`post` from any thread or signal handler; `wait` from the agent's thread.

    Attributes:
        waiting: whether somebody waits.
        waited_at: when the last wait ended, or this object was made; seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: collections.deque[Item] = collections.deque()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # Between looking at the descriptor and writing to it, `close` could run and the number become another
        # file's. Reentrant, for a signal handler posts in the thread that may be posting or closing.
        self._lock = threading.RLock()
        self.waited_at = clock.timestamp()
        self.waiting = False

    def post(self, item: Item) -> None:
        """Deliver and wake. After `close`, items are dropped."""
        with self._lock:
            if self._writer < 0:
                return
            self._items.append(item)
            try:
                os.write(self._writer, b"!")
            except BlockingIOError:
                pass  # the pipe is full, so the waiter will wake

    def wait(self, fds: Collection[int], until: Instant | None) -> list[Item]:
        """Block until an item comes, one of `fds` becomes readable, or `until` (None: an hour at most). Now and then
        it returns early and empty-handed.

        Raises:
            RuntimeError: the inbox is closed.
        """
        if self._reader < 0:
            raise RuntimeError("expected an open inbox, found a closed one: an agent runs once")
        poll = select.poll()
        for fd in (self._reader, *fds):
            poll.register(fd, select.POLLIN)
        self.waiting = True
        try:
            poll.poll(self._milliseconds(until))
        finally:
            # In this order: another thread that finds nobody waiting must not find the end of the wait before.
            self.waited_at = self._clock.timestamp()
            self.waiting = False
        return self._drain()

    def close(self) -> None:
        """Release the pipe. Idempotent."""
        with self._lock:
            pipe, self._reader, self._writer = (self._reader, self._writer), -1, -1
            self._items.clear()
            for fd in pipe:
                if fd >= 0:
                    os.close(fd)

    def _milliseconds(self, until: Instant | None) -> int:
        left = _LONGEST_WAIT if until is None else until - self._clock.now()
        return int(min(max(left, 0.0), _LONGEST_WAIT) * 1000 + 0.999)

    def _drain(self) -> list[Item]:
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items


def is_readable(fd: int) -> bool:
    """Whether the descriptor is readable now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))

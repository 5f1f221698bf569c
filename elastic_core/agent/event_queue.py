"""The event queue, the only place where the agent waits. The agent therefore need not poll, and can always react to a
signal.

Threads and signal handlers add events to the queue. The events take effect when the agent's thread waits."""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.workers import Expiry

_LONGEST_WAIT: Duration = 3600.0  # seconds; bounded, so that a lost wake-up costs at most an hour
# Seconds. One Ctrl-C may arrive twice, from the terminal and from a wrapper (tox, timeout). systemd may send SIGHUP
# after SIGTERM, and a pod's preStop hook may send another signal before the kubelet sends SIGTERM.
SAME_REQUEST: Duration = 0.5


@dataclass(frozen=True)
class Departure:
    """A notice that this node must leave. At `due`, the node begins to stop its workers. Workers that are still running
    at `until` are killed; None means no limit."""

    due: Instant
    until: Instant | None
    reason: str


class EventQueue:
    """The agent's event queue. Any thread or signal handler may call `wake`, `signalled`, `noticed`, `expired` and
    `alive_at`. Only the agent's thread may call the other methods. After `close`, events are dropped.

    Attributes:
        signals: all signals that asked the agent to leave, in order. A notice that is due is recorded as SIGTERM.
        request: the signal to send to the workers, or None if no signal has arrived. It is SIGTERM if the first request
            contains SIGTERM, otherwise the first signal.
        departure: the notice that made this node leave, if a notice came due before any signal arrived.
        urged: whether a second request has arrived, which ends the grace period.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: collections.deque[Callable[[], None]] = collections.deque()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # Without this lock, `_put` could write to the descriptor after `close`, when it may already belong to another
        # file. The lock is reentrant, because a signal handler may interrupt `_put` or `close` in the same thread.
        self._lock = threading.RLock()
        self._waiting = False
        self._waited_at = clock.timestamp()
        self._asked_at: Instant | None = None
        self._arrived: dict[str, Departure | None] = {}
        self._notices: dict[str, Departure] = {}
        self._expired: list[Expiry] = []
        self.signals: list[signal.Signals] = []
        self.request: signal.Signals | None = None
        self.departure: Departure | None = None
        self.urged = False

    def wake(self) -> None:
        """Wake the agent, because something may have changed."""
        self._put(lambda: None)

    def signalled(self, signum: signal.Signals) -> None:
        """Record a signal and the time of its arrival. The agent may handle the signal much later."""
        self._put(partial(self._take_signal, signum, self._clock.now()))

    def noticed(self, source: str, departure: Departure | None) -> None:
        """Record a notice, which replaces the source's previous notice. None withdraws the previous notice."""
        with self._lock:
            is_first = not self._arrived
            self._arrived[source] = departure  # only the latest one matters, however many a source sends
        if is_first:
            self._put(self._take_notices)

    def expired(self, expiry: Expiry) -> None:
        """Record a hung worker that a watchdog has found."""
        self._put(partial(self._expired.append, expiry))

    def wait(self, fds: Collection[int], *until: Instant | None) -> Collection[int]:
        """Block until an event arrives, one of `fds` becomes readable, the earliest time in `until` is reached, or an
        hour has passed. The wait may also end earlier. None in `until` is ignored. Returns the readable descriptors.

        Raises:
            RuntimeError: the queue is closed.
        """
        if self._reader < 0:
            raise RuntimeError("the event queue is closed: an agent runs only once")
        poll = select.poll()
        for fd in (self._reader, *fds):
            poll.register(fd, select.POLLIN)
        outer, self._waiting = self._waiting, True  # a signal handler may wait while it interrupts another wait
        try:
            with _woken_by_signals(self._writer):
                readable = poll.poll(self._milliseconds((*until, self._next_due())))
        finally:
            # The order matters: a thread that sees that the agent is not waiting must also see when this wait ended.
            self._waited_at = self._clock.timestamp()
            self._waiting = outer
        self._take_all()
        return [fd for fd, _ in readable if fd in fds]

    def pop_expired(self) -> list[Expiry]:
        """Return the timers that have expired since the last call."""
        expired = self._expired.copy()
        self._expired.clear()
        return expired

    def alive_at(self) -> float:
        """Return when the agent last handled events, in seconds since the epoch (while it waits: the current time)."""
        return self._clock.timestamp() if self._waiting else self._waited_at

    def close(self) -> None:
        """Release the pipe. Idempotent."""
        with self._lock:
            if self._waiting and threading.current_thread() is threading.main_thread():
                # A signal handler has interrupted `wait`, and the next signal must not write to a closed pipe. That
                # signal's handler may close the queue here, and `_writer` is then gone.
                writer, woken = self._writer, signal.set_wakeup_fd(-1)
                signal.set_wakeup_fd(-1 if woken == writer else woken)
            pipe, self._reader, self._writer = (self._reader, self._writer), -1, -1
            self._events.clear()
            for fd in pipe:
                if fd >= 0:
                    os.close(fd)

    def _put(self, event: Callable[[], None]) -> None:
        with self._lock:
            if self._writer < 0:
                return
            self._events.append(event)
            try:
                os.write(self._writer, b"!")
            except BlockingIOError:
                pass  # the pipe is full, so the waiter will wake

    def _milliseconds(self, until: Iterable[Instant | None]) -> int:
        now = self._clock.now()
        left = [_LONGEST_WAIT, *(instant - now for instant in until if instant is not None)]
        return int(max(min(left), 0.0) * 1000 + 0.999)

    def _take_all(self) -> None:
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            pass
        for _ in range(len(self._events)):  # ignore new events, which might keep arriving forever
            self._events.popleft()()
        due = self._next_due()
        if due is not None and due <= self._clock.now():
            self.departure = min(self._notices.values(), key=lambda notice: notice.due)
            get_logger().warning("notice due", reason=self.departure.reason)
            self.request = signal.SIGTERM
            self.signals.append(self.request)

    @property
    def why(self) -> str:
        """Why the agent must leave, or an empty string if nothing has asked it to leave."""
        if self.departure is not None:
            return self.departure.reason
        return f"received {self.request.name}" if self.request else ""

    def _next_due(self) -> Instant | None:
        """Return when the next notice is due. After a request to leave, notices are ignored, and the result is None."""
        return min((notice.due for notice in self._notices.values()), default=None) if self.request is None else None

    def _take_notices(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        for source, departure in arrived.items():
            before = self._notices.pop(source, None)
            if departure is not None:
                self._notices[source] = departure
                if before is None or before.reason != departure.reason:
                    seconds = round(max(departure.due - self._clock.now(), 0.0), 1)
                    get_logger().warning("notice received", source=source, reason=departure.reason, leaves_in=seconds)
            elif before is not None:
                get_logger().info("notice withdrawn", source=source, reason=before.reason)

    def _take_signal(self, signum: signal.Signals, at: Instant) -> None:
        # A user who has pressed Ctrl-C needs no warning.
        log = get_logger().info if signum is signal.SIGINT else get_logger().warning
        log("signal received", signal=signum.name)
        if self._asked_at is None:
            self._asked_at = at
            self.request = self.request or signum
        elif at - self._asked_at >= SAME_REQUEST:
            self.urged = True
        elif signum is signal.SIGTERM:
            self.request = signum
        self.signals.append(signum)


@contextlib.contextmanager
def _woken_by_signals(descriptor: int) -> Iterator[None]:
    """Make each signal write to the descriptor, so that the main thread leaves `poll` and runs Python's signal
    handlers. Only the main thread can run them, but the kernel may deliver a signal to another thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = -1
    try:
        if (before := signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(before)  # keep the program's own descriptor, such as asyncio's
        yield
    finally:
        signal.set_wakeup_fd(before)

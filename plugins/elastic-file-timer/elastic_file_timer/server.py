"""The agent's end of the pipe, which reads requests, tracks deadlines, and reports expired timers.

A single thread sleeps until a request arrives or the next timer expires. Every `max_interval` seconds, the thread also
checks whether the pipe was removed or a process has exited, because the kernel does not report these events.
"""

from __future__ import annotations

import math
import os
import select
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.plugin import (
    CLIENT_VARIABLE,
    Expiry,
    SystemClock,
    Watchdog,
    drop_in_forks,
    get_logger,
    later,
    show_unless_logged,
    stop_dropping,
)
from elastic_file_timer.client import TIMER_FILE
from elastic_file_timer.pipe import TimerPipe
from elastic_file_timer.timer_table import TimerTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.plugin import Clock, Instant
    from elastic_file_timer.request import FileTimerRequest

_STOP_S = 5.0
_HELD_S = 1.0  # a longer delay means that this process was suspended or that the machine stalled
_CATCH_UP_S = 2.0  # seconds after such a delay for clients to release timers, because the pipe may have been full


class FileTimerServer(Watchdog):
    """A timer server. Create, start and stop it in the same thread, and start it only once. Subclasses may extend
    `register_timers`, `clear_timers`, `get_expired_timers` and `_reap_worker`, which are called in the server's thread.

    Args:
        file_path: the pipe, which `start` creates (default: in a private folder).
        run_id: the job's run id. Requests from other jobs are refused. Requests without a run id, such as those from
            torch's client, are accepted.
        max_interval: seconds between checks for a removed pipe and for processes that have exited. It does not affect
            when timers expire.
        daemon: whether Python may exit without `stop`.
        log_event: called with the name of an event: `watchdog started`, `watchdog stopped`, `timer expired` or, if the
            server itself kills the worker, `kill worker process`. The last two are called in the server's thread,
            together with the request.
        clock: defaults to the system clock.

    Raises:
        ValueError: `max_interval` is not a positive, finite number.
    """

    def __init__(
        self,
        file_path: str | os.PathLike[str] | None,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < max_interval < math.inf:
            raise ValueError(f"max_interval must be greater than 0 seconds, not {max_interval!r}")
        self._pipe = TimerPipe(None if file_path is None else Path(file_path).absolute())
        self._max_interval = max_interval
        self._log_event = log_event
        self._clock = clock or SystemClock()
        self._on_expiry: Callable[[Expiry], None] | None = None
        self._table = TimerTable(run_id, self._clock)
        self._at = (self._clock.now(), self._clock.timestamp())
        self._thread = threading.Thread(target=self._run, name="file-timer", daemon=daemon)
        self._begun = False
        self._stopping = threading.Event()
        self._wake = -1
        self._fault = ""

    @property
    def taken(self) -> int:
        """How many requests were accepted."""
        return self._table.taken

    @property
    def refused(self) -> Mapping[str, int]:
        """How many requests were refused, by kind: `unreadable`, `another run`, `too many timers`."""
        return self._table.refused

    def start(self, on_expiry: Callable[[Expiry], None] | None = None) -> None:
        """Start watching. If `on_expiry` is not given, the server itself sends each worker the signal that its request
        names.

        Raises:
            ConfigurationError: the pipe cannot be created.
            RuntimeError: the server was started before.
        """
        if self._begun:
            raise RuntimeError("a timer server can be started only once; create a new one")
        show_unless_logged()
        self._on_expiry = on_expiry
        drop_in_forks(self)
        self._pipe.open()
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread.start()
        except BaseException:
            self._close()
            raise
        self._begun = True
        self._note("watchdog started", None)

    def stop(self) -> None:
        """Stop the server (see `Watchdog.stop`). Pending timers no longer expire."""
        if not self._begun or self._stopping.is_set():
            return
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join(_STOP_S)
        if not self._thread.is_alive():
            self._close()
        self._note("watchdog stopped", None)

    def _close(self) -> None:
        self._pipe.close()
        if self._wake >= 0:
            os.close(self._wake)
        self._wake = -1
        stop_dropping(self)

    def drop(self) -> None:
        """Close all descriptors in a forked child. Otherwise, a worker that outlives its agent would look like a reader
        of the pipe. In the child, the server then behaves as if it had never been started."""
        self._pipe.drop()
        if self._wake >= 0:
            os.close(self._wake)
        self._begun, self._wake = False, -1

    def worker_environment(self) -> dict[str, str]:
        """Return the environment variables through which `elastic_core.watchdog.expires` finds the pipe and the client
        factory. The result is empty before the start."""
        if not self._begun:
            return {}
        return {TIMER_FILE: str(self._pipe.path), CLIENT_VARIABLE: "elastic_file_timer.client:from_environment"}

    def scratch(self) -> list[str]:
        """Return the private folder of the pipe, or an empty list if the user has set the pipe's path."""
        return self._pipe.scratch()

    def fault(self) -> str:
        """Return why timers do not work, or an empty string if they do. The pipe may be lost, for example, or the
        thread may have ended. See `Watchdog.fault`."""
        if self._begun and not self._stopping.is_set() and not self._thread.is_alive():
            return self._fault or "the thread of the file timer has ended"
        return self._fault

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - any error ends the thread
            self._set_fault(f"the thread of the file timer has ended: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        look_at = later(self._clock.now(), self._max_interval)
        judge_from = self._clock.now()
        while not self._stopping.is_set():
            due = max(judge_from, min(look_at, self._table.next_deadline() or look_at))
            self._wait(due)
            self._at = (self._clock.now(), self._clock.timestamp())
            if self._at[0] - due > _HELD_S and due > judge_from:  # not again after a pause, in case the machine is slow
                judge_from = later(self._at[0], _CATCH_UP_S)
            self._take_requests()
            if self._stopping.is_set():  # the thread may not have read all requests
                return
            now, timestamp = self._at
            if now >= judge_from:
                self._judge(self.get_expired_timers(timestamp))
            if now >= look_at:
                self._look()
                look_at = later(now, self._max_interval)

    def _wait(self, until: Instant) -> None:
        """Wait until this instant, or until a request arrives or the server is stopped."""
        poll = select.poll()
        for fd in (self._wake, *(reader.fd for reader in self._pipe.readers)):
            poll.register(fd, select.POLLIN)
        poll.poll(max(0, math.ceil((until - self._clock.now()) * 1000)))

    def _take_requests(self) -> None:
        """Process pending requests. Called before the deadlines are checked, because a request may release a timer in
        time."""
        for reader in self._pipe.readers:
            for lines in reader.read():
                if self._stopping.is_set():  # a flood of requests may take seconds
                    return
                self.register_timers(self._table.read(lines))

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Process the requests in this order. They may come from different processes."""
        self._table.register(timer_requests)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Remove the timers of these processes and of all processes that have exited."""
        self._table.forget(worker_pids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers that have expired by `deadline` (seconds since the epoch), by process, earliest first. Each
        timer is returned only once. The server passes the current time, so a change of the system time has no
        effect."""
        now, timestamp = self._at
        found: dict[int, list[FileTimerRequest]] = {}
        for request in self._table.expired(later(now, deadline - timestamp)):
            found.setdefault(request.worker_pid, []).append(request)
        return found

    def _judge(self, expired: dict[int, list[FileTimerRequest]]) -> None:
        reaped = {pid for pid, requests in expired.items() if self._ended(pid, requests)}
        if reaped:
            self.clear_timers(reaped)

    def _ended(self, pid: int, requests: list[FileTimerRequest]) -> bool:
        """Report the expired timers, or signal their process. Returns whether a signal was sent."""
        chosen = None
        for request in requests:
            self._note("timer expired", request)
            if request.signal <= 0:
                get_logger().warning("timer expired", pid=pid, scope=request.scope_id, action="none, as requested")
            elif self._on_expiry is not None:
                late = 0.0 if request.deadline is None else self._clock.now() - request.deadline
                self._on_expiry(Expiry(pid, request.scope_id, late=late))
            else:
                chosen = chosen or request
        if chosen is None:
            return False
        action = f"sending signal {chosen.signal} to the process"
        get_logger().error("timer expired", pid=pid, scope=chosen.scope_id, action=action)
        if ended := self._reap_worker(pid, chosen.signal):
            self._note("kill worker process", chosen)
        return ended

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        """Send a worker the signal that its request names. Used if no agent stops the worker. Returns False if the
        signal could not be sent."""
        try:
            os.kill(worker_pid, signal)
        except OSError as error:
            get_logger().error("timer expired", pid=worker_pid, action=f"none: {error.strerror}")
            return False
        return True

    def get_last_progress_time(self) -> int:
        """Return when the thread last checked the timers, in seconds since the epoch. The thread checks at least every
        `max_interval` seconds. Agents use `fault` instead."""
        return int(self._at[1])

    def _look(self) -> None:
        self.clear_timers(set())
        problem = self._pipe.look()
        if problem != self._fault:
            self._set_fault(problem)

    def _set_fault(self, reason: str) -> None:
        if reason:  # log it before the fault becomes visible
            get_logger().error("watchdog lost", reason=reason)
        self._fault = reason

    def _note(self, name: str, request: FileTimerRequest | None) -> None:
        if self._log_event is None:
            return
        try:
            self._log_event(name, request)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            get_logger().warning("event lost", name=name, exc_info=error)

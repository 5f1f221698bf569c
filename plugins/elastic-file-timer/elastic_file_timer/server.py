"""The agent's side: reads requests from the pipe, keeps the deadlines, tells of timers that have expired.

One thread does all of it. It sleeps until a request comes in or the next timer expires. Nothing tells that a pipe was
removed, or that a process has ended; so it also looks every `max_interval` seconds.
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
_HELD_S = 1.0  # late by more than that, this process was stopped, or the machine stalled
_CATCH_UP_S = 2.0  # then for clients, which may not have found room in the pipe, to release their timers


class FileTimerServer(Watchdog):
    """Made, started once and stopped in one thread. A program may derive from it and extend `register_timers`,
    `clear_timers`, `get_expired_timers` and `_reap_worker`, which are called in the server's thread.

    Args:
        file_path: the pipe, made by `start`; None for one in a private folder. A relative path counts from here.
        run_id: the job. Requests of another one are refused; those that name none, as torch's, are not.
        max_interval: at most so many seconds pass until a removed pipe is made again and timers of ended processes are
            forgotten. Timers expire in time whatever it is.
        daemon: whether Python may exit without `stop`.
        log_event: told of `watchdog started` and `watchdog stopped`; and, in the server's thread and with the request,
            of `timer expired` and `kill worker process` (if the server does that itself).
        clock: None for that of the machine.

    Raises:
        ValueError: `max_interval` is no time to wait.
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
            raise ValueError(f"expected as max_interval more than 0 seconds, found {max_interval!r}")
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
        """How many requests were of use."""
        return self._table.taken

    @property
    def refused(self) -> Mapping[str, int]:
        """How many requests were of no use, by kind: `unreadable`, `another run`, `too many timers`."""
        return self._table.refused

    def start(self, on_expiry: Callable[[Expiry], None] | None = None) -> None:
        """Begin watching. Without `on_expiry` the server itself sends workers the signal that they asked for.

        Raises:
            ConfigurationError: the pipe cannot be made where it should be.
            RuntimeError: it was started before.
        """
        if self._begun:
            raise RuntimeError("expected a server that was never started, found one that was; make a new one")
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
        """See `Watchdog.stop`. What workers have asked for until now is without effect."""
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
        """In a forked child: hold neither the pipe nor what wakes the thread. A worker that outlives its agent would
        else pass for one that reads the pipe. There, it is as if it had never been started."""
        self._pipe.drop()
        if self._wake >= 0:
            os.close(self._wake)
        self._begun, self._wake = False, -1

    def worker_environment(self) -> dict[str, str]:
        """The pipe, and what makes the client of `elastic_core.watchdog.expires`; nothing before it was started."""
        if not self._begun:
            return {}
        return {TIMER_FILE: str(self._pipe.path), CLIENT_VARIABLE: "elastic_file_timer.client:from_environment"}

    def scratch(self) -> list[str]:
        """The private folder of the pipe; nothing where the user has said where the pipe is."""
        return self._pipe.scratch()

    def fault(self) -> str:
        """See `Watchdog.fault`: the thread has ended, or clients do not find the pipe any more."""
        if self._begun and not self._stopping.is_set() and not self._thread.is_alive():
            return self._fault or "the thread of the file timer has ended"
        return self._fault

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody watches from here on
            self._set_fault(f"the thread of the file timer has ended: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        look_at = later(self._clock.now(), self._max_interval)
        judge_from = self._clock.now()
        while not self._stopping.is_set():
            due = max(judge_from, min(look_at, self._table.next_deadline() or look_at))
            self._wait(due)
            self._at = (self._clock.now(), self._clock.timestamp())
            if self._at[0] - due > _HELD_S and due > judge_from:  # not again after a pause on a slow machine
                judge_from = later(self._at[0], _CATCH_UP_S)
            self._take_requests()
            if self._stopping.is_set():  # it may not have read all of them
                return
            now, timestamp = self._at
            if now >= judge_from:
                self._judge(self.get_expired_timers(timestamp))
            if now >= look_at:
                self._look()
                look_at = later(now, self._max_interval)

    def _wait(self, until: Instant) -> None:
        """Until then, or until a request comes in or it is time to stop."""
        poll = select.poll()
        for fd in (self._wake, *(reader.fd for reader in self._pipe.readers)):
            poll.register(fd, select.POLLIN)
        poll.poll(max(0, math.ceil((until - self._clock.now()) * 1000)))

    def _take_requests(self) -> None:
        """All that came in until the moment at which the deadlines are looked at, which has passed by now: a timer may
        have been released in time."""
        for reader in self._pipe.readers:
            for lines in reader.read():
                if self._stopping.is_set():  # a flood is some seconds' work
                    return
                self.register_timers(self._table.read(lines))

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Start and stop the timers that these requests of any process are about, in this order."""
        self._table.register(timer_requests)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forget the timers of these processes, and of all that have ended."""
        self._table.forget(worker_pids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """By process, the timers that have expired by `deadline` (seconds since the epoch), earliest first. Each is
        returned once. The server itself asks for the present, and then setting the time of day makes no difference."""
        now, timestamp = self._at
        found: dict[int, list[FileTimerRequest]] = {}
        for timer in self._table.expired(later(now, deadline - timestamp)):
            found.setdefault(timer.pid, []).append(timer.about)
        return found

    def _judge(self, expired: dict[int, list[FileTimerRequest]]) -> None:
        reaped = {pid for pid, requests in expired.items() if self._ended(pid, requests)}
        if reaped:
            self.clear_timers(reaped)

    def _ended(self, pid: int, requests: list[FileTimerRequest]) -> bool:
        """Tell of the timers, or end their process. Whether it has got a signal."""
        chosen = None
        for request in requests:
            self._note("timer expired", request)
            if request.signal <= 0:
                get_logger().warning("timer expired", pid=pid, scope=request.scope_id, action="none, as asked for")
            elif self._on_expiry is not None:
                late = 0.0 if request.deadline is None else self._clock.now() - request.deadline
                self._on_expiry(Expiry(pid, request.scope_id, late=late))
            else:
                chosen = chosen or request
        if chosen is None:
            return False
        action = f"the process gets signal {chosen.signal}"
        get_logger().error("timer expired", pid=pid, scope=chosen.scope_id, action=action)
        if ended := self._reap_worker(pid, chosen.signal):
            self._note("kill worker process", chosen)
        return ended

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        """End a worker, by the signal it has asked for; only called if no agent does that. False: it could not be
        ended."""
        try:
            os.kill(worker_pid, signal)
        except OSError as error:
            get_logger().error("timer expired", pid=worker_pid, action=f"none: {error.strerror}")
            return False
        return True

    def get_last_progress_time(self) -> int:
        """When the thread last looked at the timers, in seconds since the epoch; it does so at least every
        `max_interval`. An agent asks for `fault`."""
        return int(self._at[1])

    def _look(self) -> None:
        self.clear_timers(set())
        problem = self._pipe.look()
        if problem != self._fault:
            self._set_fault(problem)

    def _set_fault(self, reason: str) -> None:
        if reason:  # first: who has seen the fault finds it in the log
            get_logger().error("watchdog lost", reason=reason)
        self._fault = reason

    def _note(self, name: str, request: FileTimerRequest | None) -> None:
        if self._log_event is None:
            return
        try:
            self._log_event(name, request)
        except Exception as error:  # noqa: BLE001 - it is the user's, and workers are watched all the same
            get_logger().warning("event lost", name=name, exc_info=error)

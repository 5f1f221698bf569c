"""Timers in a program of one's own, without an agent: a server takes requests from a queue, and ends the workers that
do not release their timers in time. Names and promises are those of torch.distributed.elastic.timer.

The server's thread sleeps until a request comes in or the next timer expires, so an expiry is noticed at once; torch's
server notices it within `max_interval`. Under an agent the watchdog `file` does this, and ends a worker more carefully.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.clock import Instant, SystemClock, later
from elastic_core.watchdog.deadlines import Deadlines, Timer
from elastic_core.watchdog.guard import TimerClient, TimerRequest
from elastic_core.watchdog.process import process_runs, process_start_time

if TYPE_CHECKING:
    from elastic_core.clock import Duration

_CLOCK = SystemClock()
_STOP_S: Duration = 5.0  # seconds for what a turn of the thread does besides waiting
_AFTER_ERROR_S: Duration = 1.0


class RequestQueue(abc.ABC):
    """Where a server gets the requests of its clients from."""

    @abc.abstractmethod
    def size(self) -> int:
        """How many requests are there now. `get` returns at least as many if it is given time for them."""

    @abc.abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """At most `size` requests, for which it waits at most `timeout` seconds; none if none has come by then."""

    def wake(self) -> None:  # noqa: B027 - most queues have nothing to do
        """The server is about to stop: from now on `get` does not wait. Here nothing is done, so that the server stops
        when `get` returns. Any thread."""


class TimerServer(abc.ABC):
    """Started once, and stopped. A program derives from it and gives the four methods below, all of which are called in
    the server's thread. An error of one of them is logged (`watchdog lost`), and the server goes on.

    Args:
        request_queue: where the requests come from.
        max_interval: at most so many seconds pass between two looks at the timers. A worker that could not be ended is
            tried again then at the latest.
        daemon: whether Python may exit without `stop`.
    """

    def __init__(self, request_queue: RequestQueue, max_interval: float, daemon: bool = True) -> None:
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._due: Deadlines[None] = Deadlines()  # by the time of day, which is what requests tell
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timer-server", daemon=daemon)

    @abc.abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Requests have come in, in this order; or none has, at a look at the timers."""

    @abc.abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forget all timers of these workers, which have been ended."""

    @abc.abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """By worker, the timers that have expired by `deadline`, in seconds since the epoch."""

    @abc.abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """End a worker. False: it could not be ended, and is tried again. If it raises, the worker counts as ended."""

    def start(self) -> None:
        """Begin to watch. Raises RuntimeError the second time."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; afterwards no thread runs. Idempotent. Takes a moment, and up to `max_interval` with a queue
        that cannot be woken."""
        self._stopping.set()
        self._request_queue.wake()
        if self._thread.is_alive():
            self._thread.join(self._max_interval + _STOP_S)

    def _run(self) -> None:
        from elastic_core.log import get_logger  # here, because workers import this module for its client

        while not self._stopping.is_set():
            try:
                self._look(self._next_requests())
            except Exception as error:  # noqa: BLE001 - the methods are the program's, and the next request may be better
                get_logger().error("watchdog lost", reason=f"until the next look: {error!r}", exc_info=error)
                self._stopping.wait(min(_AFTER_ERROR_S, self._max_interval))

    def _next_requests(self) -> list[TimerRequest]:
        """Wait for one, and take what has come with it. A queue may count requests that never arrive, of a worker that
        died while it wrote: for those it does not wait."""
        due = self._due.next_deadline()
        left = self._max_interval if due is None else max(0.0, due - _CLOCK.timestamp())
        requests = self._request_queue.get(1, min(left, self._max_interval))
        more = self._request_queue.size() if requests else 0
        return requests + self._request_queue.get(more, 0) if more > 0 else requests

    def _look(self, requests: list[TimerRequest]) -> None:
        for request in requests:
            self._schedule(request)
        self.register_timers(requests)
        now = _CLOCK.timestamp()
        self._due.expired(Instant(now))
        hung = self.get_expired_timers(now)
        self.clear_timers({worker_id for worker_id, timers in hung.items() if self._ended(worker_id, timers)})

    def _schedule(self, request: Any) -> None:
        """When to look again. A request of a program's own kind is looked at every `max_interval` seconds."""
        if not isinstance(request, TimerRequest):
            return
        if 0 <= request.expiration_time < math.inf:
            deadline = Instant(request.expiration_time)
            self._due.acquire(Timer(request.worker_id, request.scope_id, deadline, None))
        else:
            self._due.release(request.worker_id, request.scope_id)

    def _ended(self, worker_id: Any, timers: list[TimerRequest]) -> bool:
        from elastic_core.log import get_logger

        error: Exception | None = None
        try:
            ended = self._reap_worker(worker_id)
            action = "it was ended" if ended else "it could not be ended, and is tried again"
        except Exception as raised:  # noqa: BLE001 - it is the program's
            ended, action, error = True, f"none: {raised!r}", raised
        scopes = [timer.scope_id for timer in timers]
        get_logger().error("timer expired", worker=worker_id, scopes=scopes, action=action, exc_info=error)
        return ended


class MultiprocessingRequestQueue(RequestQueue):
    """The requests in a queue of `multiprocessing`. `mp_queue` may be any object with its methods `get` and `qsize`;
    one of a manager cannot be woken."""

    def __init__(self, mp_queue: Any) -> None:
        from multiprocessing import Pipe

        self._mp_queue = mp_queue
        self._woken, self._waker = Pipe(duplex=False)

    def size(self) -> int:
        return int(self._mp_queue.qsize())

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        until = later(_CLOCK.now(), timeout)
        requests: list[TimerRequest] = []
        with contextlib.suppress(queue.Empty):
            while len(requests) < size:
                requests.append(self._next(max(0.0, until - _CLOCK.now())))
        return requests

    def wake(self) -> None:
        self._waker.send_bytes(b"stop")

    def _next(self, timeout: float) -> Any:
        """Raises queue.Empty."""
        from multiprocessing.connection import wait

        reader = getattr(self._mp_queue, "_reader", None)
        if reader is None:
            return self._mp_queue.get(timeout=timeout)
        wait([reader, self._woken], timeout)
        return self._mp_queue.get_nowait()


class LocalTimerClient(TimerClient):
    """The client of a `LocalTimerServer`, in a process that has got the server's queue from its parent. A process that
    dies while it writes into the queue may hold it for all others: the file timer has no such risk."""

    def __init__(self, mp_queue: Any) -> None:
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1.0))


class LocalTimerServer(TimerServer):
    """Ends processes of this machine by SIGKILL. `mp_queue` is a `multiprocessing.Queue`, which its clients share."""

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[int, str], TimerRequest] = {}
        self._started: dict[int, int | None] = {}

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            if request.expiration_time < 0:
                self._timers.pop((request.worker_id, request.scope_id), None)
            else:
                self._timers[request.worker_id, request.scope_id] = request
                self._started[request.worker_id] = process_start_time(request.worker_id)

    def clear_timers(self, worker_ids: set[Any]) -> None:
        self._timers = {key: request for key, request in self._timers.items() if key[0] not in worker_ids}
        self._started = {pid: self._started[pid] for pid, _ in self._timers}

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        found: dict[Any, list[TimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                found.setdefault(request.worker_id, []).append(request)
        return found

    def _reap_worker(self, worker_id: Any) -> bool:
        """The process that asked for the timer, and not a later one that got its id."""
        try:
            if process_runs(worker_id, self._started.get(worker_id)):
                os.kill(worker_id, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        return True

"""Timers for programs without an agent. A server receives requests from a queue, and kills workers that do not release
their timers in time. The API is the same as in torch.distributed.elastic.timer.

The server's thread sleeps until a request arrives or the next timer expires. It therefore detects an expired timer
immediately, whereas torch's server needs up to `max_interval`. Programs with an agent should use the watchdog `file`,
which stops workers more gently."""

from __future__ import annotations

import abc
import contextlib
import math
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock, later
from elastic_core.support.processes import process_runs, process_start_time
from elastic_core.watchdog.guard import TimerClient, TimerRequest

if TYPE_CHECKING:
    from elastic_core.clock import Duration

_CLOCK = SystemClock()
_STOP_S: Duration = 5.0  # seconds that an iteration of the thread may take, excluding its waits
_AFTER_ERROR_S: Duration = 1.0


class RequestQueue(abc.ABC):
    """The queue from which a server receives requests."""

    @abc.abstractmethod
    def size(self) -> int:
        """Return the number of queued requests. Given enough time, `get` returns at least that many."""

    @abc.abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Wait until `size` requests have arrived, for at most `timeout` seconds. Returns the requests that have
        arrived."""

    def wake(self) -> None:  # noqa: B027 - most queues have nothing to do
        """Make `get` return without waiting from now on, because the server is stopping. Any thread may call this
        method.

        The default implementation does nothing, and the server stops only when `get` returns."""


class TimerServer(abc.ABC):
    """The base class for timer servers. A server can be started only once.

    Subclasses implement the four methods below, which the server's thread calls. An error in one of these methods is
    logged (`watchdog lost`), and the server continues.

    Args:
        request_queue: the source of requests.
        max_interval: the maximum number of seconds between two checks of the timers. If a worker cannot be killed, the
            next check tries again.
        daemon: whether Python may exit before `stop` is called.
    """

    def __init__(self, request_queue: RequestQueue, max_interval: float, daemon: bool = True) -> None:
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._deadlines: dict[tuple[Any, str], float] = {}  # of running timers, in seconds since the epoch
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timer-server", daemon=daemon)

    @abc.abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Process new requests in the given order. The list may be empty."""

    @abc.abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Remove all timers of these workers, which have been killed."""

    @abc.abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return each worker's timers that have expired by `deadline`, which is in seconds since the epoch."""

    @abc.abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """Kill a worker. Returns false if the server should try again later. The server does not try again after an
        error."""

    def start(self) -> None:
        """Start watching. Raises RuntimeError if called twice."""
        from elastic_core.log import show_unless_logged  # here, because workers import this module for its client

        show_unless_logged()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and wait for the thread to end. Idempotent. If the queue does not implement `wake`, this takes
        up to `max_interval` seconds."""
        self._stopping.set()
        self._request_queue.wake()
        if self._thread.is_alive():
            self._thread.join(self._max_interval + _STOP_S)

    def _run(self) -> None:
        from elastic_core.log import get_logger  # here, because workers import this module for its client

        while not self._stopping.is_set():
            try:
                self._look(self._next_requests())
            except Exception as error:  # noqa: BLE001 - the program's methods may raise anything
                get_logger().error("watchdog lost", reason=f"until the next check: {error!r}", exc_info=error)
                self._stopping.wait(min(_AFTER_ERROR_S, self._max_interval))

    def _next_requests(self) -> list[TimerRequest]:
        """Wait for a request, and return it with all other queued requests.

        Only the first request is waited for. The queue's size may include a request that never arrives, because its
        worker died while writing it."""
        left = min(self._deadlines.values(), default=math.inf) - _CLOCK.timestamp()
        requests = self._request_queue.get(1, max(0.0, min(left, self._max_interval)))
        more = self._request_queue.size() if requests else 0
        return requests + self._request_queue.get(more, 0) if more > 0 else requests

    def _look(self, requests: list[TimerRequest]) -> None:
        for request in requests:
            self._schedule(request)
        self.register_timers(requests)
        now = _CLOCK.timestamp()
        self._deadlines = {timer: deadline for timer, deadline in self._deadlines.items() if deadline > now}
        hung = self.get_expired_timers(now)
        self.clear_timers({worker_id for worker_id, timers in hung.items() if self._ended(worker_id, timers)})

    def _schedule(self, request: Any) -> None:
        """Schedule the next check for this request. If the request is not a TimerRequest, it is checked every
        `max_interval` seconds."""
        if not isinstance(request, TimerRequest):
            return
        if 0 <= request.expiration_time < math.inf:
            self._deadlines[request.worker_id, request.scope_id] = request.expiration_time
        else:
            self._deadlines.pop((request.worker_id, request.scope_id), None)

    def _ended(self, worker_id: Any, timers: list[TimerRequest]) -> bool:
        from elastic_core.log import get_logger

        error: Exception | None = None
        try:
            ended = self._reap_worker(worker_id)
            action = "killed" if ended else "could not be killed; the server will try again"
        except Exception as raised:  # noqa: BLE001 - the program's method may raise anything
            ended, action, error = True, f"none: {raised!r}", raised
        scopes = [timer.scope_id for timer in timers]
        get_logger().error("timer expired", worker=worker_id, scopes=scopes, action=action, exc_info=error)
        return ended


class MultiprocessingRequestQueue(RequestQueue):
    """Receives requests from `mp_queue`, a `multiprocessing` queue or any object with the methods `get` and `qsize`. A
    manager's queue does not support `wake`."""

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
        """Return the next request. Raises queue.Empty if none arrives in time."""
        from multiprocessing.connection import wait

        reader = getattr(self._mp_queue, "_reader", None)
        if reader is None:
            return self._mp_queue.get(timeout=timeout)
        wait([reader, self._woken], timeout)
        return self._mp_queue.get_nowait()


class LocalTimerClient(TimerClient):
    """The client for a `LocalTimerServer`, for use in a process that inherited the server's queue. A process that dies
    while writing to the queue may block all other processes. The file timer does not have this risk."""

    def __init__(self, mp_queue: Any) -> None:
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1.0))


class LocalTimerServer(TimerServer):
    """Kills local processes with SIGKILL when their timers expire. The server and its clients share `mp_queue`, a
    `multiprocessing.Queue`."""

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[int, str], TimerRequest] = {}
        self._started: dict[int, int | None] = {}

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            if request.expiration_time < 0:
                self._timers.pop((request.worker_id, request.scope_id), None)
            elif (started := process_start_time(request.worker_id)) is not None:  # otherwise, it has already ended
                if self._started.get(request.worker_id, started) != started:
                    self.clear_timers({request.worker_id})  # of an earlier process with the same id
                self._timers[request.worker_id, request.scope_id] = request
                self._started[request.worker_id] = started

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
        """Kill the process that acquired the timer, but never a later process with the same id."""
        try:
            if process_runs(worker_id, self._started.get(worker_id)):
                os.kill(worker_id, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        return True

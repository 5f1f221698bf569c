"""Timer servers without an agent. plugins/elastic-file-timer has the other classes, and tests that programs written for
torch's classes run with them."""

import math
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time

import pytest

from elastic_core.watchdog import (
    LocalTimerClient,
    LocalTimerServer,
    MultiprocessingRequestQueue,
    RequestQueue,
    TimerRequest,
    TimerServer,
    timer_server,
)

LIMIT_S = 60
LONG_S = 600


class ThreadQueue(RequestQueue):
    """A queue within this process; `size` may report more requests than it has."""

    def __init__(self, more=0):
        self.requests, self.more = queue.Queue(), more

    def size(self):
        return self.requests.qsize() + self.more

    def get(self, size, timeout):
        found = []
        try:
            while len(found) < size:
                found.append(self.requests.get(timeout=timeout))
        except queue.Empty:
            pass
        return found

    def wake(self):
        self.requests.put(TimerRequest("none", "end", -1))


class RecordingServer(TimerServer):
    """Records expired workers. A request with the scope "breaks" makes registration raise."""

    def __init__(self, requests, max_interval=LONG_S):
        super().__init__(requests, max_interval)
        self.running, self.checks = {}, 0
        self.reaped = queue.Queue()

    def register_timers(self, timer_requests):
        self.checks += 1
        for given in timer_requests:
            request = TimerRequest(given[0], "step", given[1]) if isinstance(given, tuple) else given
            if request.scope_id == "breaks":
                raise ZeroDivisionError("it breaks")
            self.running[request.worker_id] = request

    def clear_timers(self, worker_ids):
        for worker_id in worker_ids:
            del self.running[worker_id]

    def get_expired_timers(self, deadline):
        return {name: [found] for name, found in self.running.items() if 0 <= found.expiration_time <= deadline}

    def _reap_worker(self, worker_id):
        self.reaped.put(worker_id)
        return True


@pytest.fixture
def start():
    """A function that starts a server; it is stopped at the end and must leave no thread."""
    before, started = set(threading.enumerate()), []

    def begin(server):
        started.append(server)
        server.start()
        return server

    yield begin
    for server in started:
        begun = time.monotonic()
        server.stop()
        server.stop()
        assert time.monotonic() - begun < LIMIT_S
    left = {thread for thread in set(threading.enumerate()) - before if thread.name != "QueueFeederThread"}
    assert left == set()


def due(name, seconds, scope="step"):
    return TimerRequest(name, scope, time.time() + seconds)


def test_expired_timer_is_noticed_before_the_interval_ends(start):
    requests = ThreadQueue()
    server = start(RecordingServer(requests))
    requests.requests.put(due("later", LONG_S))
    requests.requests.put(due("soon", 0.1))
    assert server.reaped.get(timeout=LIMIT_S) == "soon"
    assert set(server.running) <= {"later", "soon"}


def test_released_timers_do_not_wake_the_server(start):
    requests = ThreadQueue()
    for number in range(50):
        requests.requests.put(due(number, 0.2 + number / 100))
        requests.requests.put(TimerRequest(number, "step", -1))
    requests.requests.put(due("last", 1))
    server = start(RecordingServer(requests))
    assert server.reaped.get(timeout=LIMIT_S) == "last"
    assert server.checks < 10


def test_server_does_not_wait_for_overcounted_requests(start):
    requests = ThreadQueue(more=5)
    server = start(RecordingServer(requests))
    requests.requests.put(due("worker", 0.1))
    assert server.reaped.get(timeout=LIMIT_S) == "worker"


@pytest.mark.parametrize("never", [math.inf, math.nan])
def test_infinite_timer_does_not_wake_the_server(start, never):
    requests = ThreadQueue()
    server = start(RecordingServer(requests))
    requests.requests.put(TimerRequest("worker", "step", never))
    requests.requests.put(due("last", 0.3))
    assert server.reaped.get(timeout=LIMIT_S) == "last"
    assert server.checks < 10


def test_server_continues_after_an_error(start, capsys):
    requests = ThreadQueue()
    server = start(RecordingServer(requests))
    requests.requests.put(due("worker", 0, scope="breaks"))
    logged(capsys, "watchdog lost: reason=\"until the next check: ZeroDivisionError('it breaks')\"")
    requests.requests.put(due("last", 0))
    assert server.reaped.get(timeout=LIMIT_S) == "last"
    assert server.running.keys() <= {"last"}


def test_custom_requests_are_passed_to_the_program(start):
    requests = ThreadQueue()
    server = start(RecordingServer(requests, max_interval=0.1))
    requests.requests.put(("foreign", 0.0))
    assert server.reaped.get(timeout=LIMIT_S) == "foreign"


def test_second_start_raises_runtime_error(start):
    server = start(RecordingServer(ThreadQueue()))
    with pytest.raises(RuntimeError):
        server.start()


def test_unstarted_server_can_be_stopped():
    RecordingServer(ThreadQueue()).stop()


@pytest.mark.parametrize("make", [multiprocessing.Queue, queue.Queue])
def test_process_queue_returns_up_to_size_requests(make):
    shared = make()
    requests = MultiprocessingRequestQueue(shared)
    assert (requests.size(), requests.get(1, 0), requests.get(3, 0.01)) == (0, [], [])
    for name in "abc":
        shared.put(name)
    assert requests.size() == 3
    assert (requests.get(2, LIMIT_S), requests.get(5, 0.5)) == (["a", "b"], ["c"])


def test_wake_ends_a_wait_on_a_process_queue():
    requests = MultiprocessingRequestQueue(multiprocessing.Queue())
    waits = threading.Thread(target=requests.get, args=(1, LONG_S), daemon=True)
    waits.start()
    requests.wake()
    waits.join(LIMIT_S)
    assert not waits.is_alive()


def test_server_without_wake_stops_after_its_interval(start):
    start(LocalTimerServer(queue.Queue(), max_interval=0.2))


@pytest.fixture
def worker():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def shared():
    """A multiprocessing queue that does not block the exit."""
    made = multiprocessing.Queue()
    yield made
    made.close()
    made.join_thread()


@pytest.mark.integration
def test_hung_process_is_killed_immediately(start, shared, worker):
    start(LocalTimerServer(shared, max_interval=LONG_S))
    LocalTimerClient(shared).acquire("of this process", time.time() + LONG_S)
    shared.put(due(worker.pid, 0.1))
    assert worker.wait(LIMIT_S) == -9


@pytest.mark.integration
def test_process_with_reused_pid_is_not_killed(start, shared, worker, monkeypatch, capsys):
    with monkeypatch.context() as earlier:
        earlier.setattr(timer_server, "process_start_time", lambda pid: 1)
        start(LocalTimerServer(shared))
        shared.put(due(worker.pid, 0.1))
        logged(capsys, "killed")
    assert worker.poll() is None


@pytest.mark.integration
def test_timers_of_an_earlier_process_with_the_same_pid_are_dropped(shared, worker, monkeypatch):
    server = LocalTimerServer(shared)
    with monkeypatch.context() as earlier:
        earlier.setattr(timer_server, "process_start_time", lambda pid: 1)
        server.register_timers([TimerRequest(worker.pid, "old", 5.0)])
    server.register_timers([TimerRequest(worker.pid, "new", 50.0)])
    assert server.get_expired_timers(10.0) == {}
    assert [timer.scope_id for timer in server.get_expired_timers(60.0)[worker.pid]] == ["new"]


@pytest.mark.integration
def test_failed_kill_is_retried(start, shared, worker, monkeypatch, capsys):
    def forbidden(pid, signum):
        raise PermissionError("not yours")

    with monkeypatch.context() as here:
        here.setattr(os, "kill", forbidden)
        start(LocalTimerServer(shared, max_interval=0.1))
        shared.put(due(worker.pid, 0))
        logged(capsys, "could not be killed", times=2)
    assert worker.wait(LIMIT_S) == -9


def logged(capsys, words, times=1):
    """Wait until the log contains the words so many times."""
    log, until = "", time.monotonic() + LIMIT_S
    while log.count(words) < times:
        assert time.monotonic() < until, log
        time.sleep(0.01)
        log += capsys.readouterr().err

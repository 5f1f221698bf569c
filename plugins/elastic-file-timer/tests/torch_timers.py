"""A program for torch's timers that prints its events. `test_torch.py` runs it unchanged, and with other imports."""

import multiprocessing
import os
import signal
import sys
import threading
import time

from torch.distributed.elastic import timer
from torch.distributed.elastic.timer import FileTimerClient, FileTimerServer
from torch.distributed.elastic.timer.file_based_local_timer import FileTimerRequest
from torch.distributed.elastic.timer.local_timer import MultiprocessingRequestQueue

LIMIT_S = 60
FOR_EVER = 1000
mp = multiprocessing.get_context("fork")


def ended(target, *args):
    """Run `target` in a process; returns its exit code."""
    process = mp.Process(target=target, args=args)
    process.start()
    process.join(LIMIT_S)
    return process.exitcode


class NamedRequest(timer.TimerRequest):
    def __init__(self, name, scope_id, expiration_time):
        super().__init__(worker_id=name, scope_id=scope_id, expiration_time=expiration_time)
        self.urgent = scope_id.startswith("urgent")


class NamedClient(timer.TimerClient):
    """A client whose worker has a name instead of a process id."""

    def __init__(self, queue, name):
        super().__init__()
        self.queue, self.name = queue, name

    def acquire(self, scope_id, expiration_time):
        self.queue.put(NamedRequest(self.name, scope_id, expiration_time))

    def release(self, scope_id):
        self.queue.put(NamedRequest(self.name, scope_id, -1))


class NamedServer(timer.TimerServer):
    """Reaps the worker `stubborn` only at the second attempt, and raises when it reaps `fragile`."""

    def __init__(self, queue):
        super().__init__(MultiprocessingRequestQueue(queue), max_interval=0.2)
        self.running, self.registered, self.attempts = {}, [], []
        self.changed = threading.Condition()

    def register_timers(self, timer_requests):
        for request in timer_requests:
            self.registered.append((request.worker_id, request.scope_id, request.expiration_time >= 0, request.urgent))
            self.running.pop((request.worker_id, request.scope_id), None)
            if request.expiration_time >= 0:
                self.running[request.worker_id, request.scope_id] = request

    def clear_timers(self, worker_ids):
        with self.changed:
            self.running = {key: request for key, request in self.running.items() if key[0] not in worker_ids}
            self.changed.notify_all()

    def get_expired_timers(self, deadline):
        found = {}
        for request in self.running.values():
            if request.expiration_time <= deadline:
                found.setdefault(request.worker_id, []).append(request)
        return found

    def _reap_worker(self, worker_id):
        self.attempts.append((worker_id, sorted(scope for name, scope in self.running if name == worker_id)))
        if worker_id == "fragile":
            raise ZeroDivisionError(worker_id)
        return worker_id != "stubborn" or len(self.attempts) > 1


def named_worker(queue, name):
    timer.configure(NamedClient(queue, name))
    for scope in ("first", "second"):
        try:
            with timer.expires(after=60, scope=scope):
                raise KeyError(scope)
        except KeyError:
            pass
    if name != "well":
        NamedClient(queue, name).acquire("urgent", time.time() + 0.1)


def named_server():
    queue = mp.Queue()
    NamedServer(queue).stop()
    server = NamedServer(queue)
    server.start()
    for name, count in (("well", 4), ("stubborn", 9), ("fragile", 14), ("other", 19)):
        print(name, ended(named_worker, queue, name))
        with server.changed:
            assert server.changed.wait_for(
                lambda count=count: not server.running and len(server.registered) == count, LIMIT_S
            )
    server.stop()
    print(*server.registered, *server.attempts, sep="\n")


def local_worker(queue, what):
    client = timer.LocalTimerClient(queue)
    timer.configure(client)
    for step in range(20):
        with timer.expires(after=60, scope=f"step {step % 3}"):
            pass
    if what == "hangs":
        with timer.expires(after=0.1, client=client):
            time.sleep(FOR_EVER)
    if what == "hangs in a function":
        sleep_for_ever()


@timer.expires(after=0.1, scope="function")
def sleep_for_ever():
    time.sleep(FOR_EVER)


def local_server():
    queue = mp.Queue()
    server = timer.LocalTimerServer(queue, max_interval=0.2)
    server.start()
    for what in ("hangs", "is well", "hangs in a function"):
        print(what, ended(local_worker, queue, what))
    server.stop()


class NotedServer(FileTimerServer):
    """Records events. torch's server could kill its own process with a worker; this one does not."""

    def __init__(self, path):
        self.notes = []
        self.noted = mp.Event()
        self.killed = threading.Event()
        super().__init__(path, "job", max_interval=0.2, daemon=True, log_event=self.note)

    def note(self, name, request):
        self.notes.append((name, request and request.scope_id))
        if self.notes[-1] == ("timer expired", "noted"):
            self.noted.set()
        if name == "kill worker process":
            self.killed.set()

    def register_timers(self, timer_requests):
        super().register_timers([request for request in timer_requests if request.scope_id != "ignored"])

    def _reap_worker(self, worker_pid, signal):
        if worker_pid == os.getpid():
            return True
        self.notes.append(("signal", int(signal)))
        return super()._reap_worker(worker_pid, signal)


def file_worker(path, scope, number, wait, *args):
    timer.configure(FileTimerClient(path, signal=number))
    with timer.expires(after=60, scope="passes"):
        pass
    with timer.expires(after=0.1, scope=scope):
        wait(*args)


def file_timer(path):
    server = NotedServer(path)
    server.start()
    print("not registered", ended(file_worker, path, "ignored", signal.SIGKILL, time.sleep, 1))
    print("without a signal", ended(file_worker, path, "noted", 0, server.noted.wait, LIMIT_S))
    print("hangs", ended(file_worker, path, "hangs", signal.SIGTERM, time.sleep, FOR_EVER))
    server.killed.wait(LIMIT_S)
    server.stop()
    print(server.notes, os.path.exists(path))


def values():
    queue = mp.Queue()
    requests = MultiprocessingRequestQueue(queue)
    print(requests.size(), requests.get(1, timeout=0), requests.get(3, 0.01))
    given = [timer.TimerRequest(1, "a", 5.0), timer.TimerRequest(1, "b", 6.0), timer.TimerRequest(2, "a", -1)]
    for request in given:
        queue.put(request)
    print(requests.size(), requests.get(2, 30) == given[:2], requests.size(), requests.get(9, 1) == given[2:])
    one, same = timer.TimerRequest(1, "a", 5.0), timer.TimerRequest(worker_id=1, scope_id="a", expiration_time=5.0)
    print(one == same, one == 5, one == timer.TimerRequest(2, "a", 5.0), one == timer.TimerRequest(1, "b", 5.0))
    file = FileTimerRequest(worker_pid=1, scope_id="a", expiration_time=5.0)
    print(file.worker_pid, file.worker_id, file.signal, file.version, file == one)
    print(file == FileTimerRequest(1, "a", 5.0), file == FileTimerRequest(1, "a", 5.0, 9))


if __name__ == "__main__":
    values()
    named_server()
    local_server()
    file_timer(os.path.join(sys.argv[1], "timers"))

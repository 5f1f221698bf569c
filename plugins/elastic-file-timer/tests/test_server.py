"""The server with and without an agent: expiries, their delay, and faults."""

import os
import signal
import threading
import time

import pytest
from elastic_file_timer import FileTimerClient, FileTimerServer
from elastic_testing import eventually

from elastic_core.clock import SystemClock, later

LIMIT_S = 60
BOUND_S = 20  # faults take longer than this, or never end; a machine that stalls is faster
HUNG = """
import sys
from elastic_file_timer import FileTimerClient, expires
client = FileTimerClient(sys.argv[1], int(sys.argv[2]))
with expires(0.1, "hung", client):
    print("in", flush=True)
    sys.stdin.read()
"""


class Notes:
    """Records calls of `log_event`."""

    def __init__(self):
        self.names = []
        self.requests = []
        self.news = threading.Condition()

    def __call__(self, name, request):
        with self.news:
            self.names.append(name)
            self.requests.append(request)
            self.news.notify_all()

    def wait(self, name):
        with self.news:
            assert self.news.wait_for(lambda: name in self.names, LIMIT_S), self.names


def test_server_without_agent_kills_hung_process_with_its_signal(make_server, start_process, tmp_path):
    notes = Notes()
    make_server(log_event=notes).start()
    process = start_process(HUNG, tmp_path / "timers", int(signal.SIGTERM))
    assert process.wait(LIMIT_S) == -signal.SIGTERM
    notes.wait("kill worker process")
    assert notes.names == ["watchdog started", "timer expired", "kill worker process"]
    assert notes.requests[1].worker_pid == notes.requests[2].worker_pid == process.pid
    assert notes.requests[1].scope_id == "hung"


def test_server_with_agent_only_reports_the_expiry(make_server, start_process, expiry_log, tmp_path):
    make_server().start(expiry_log)
    process = start_process(HUNG, tmp_path / "timers", int(signal.SIGKILL))
    assert expiry_log.scopes("hung") == []
    assert process.poll() is None


@pytest.mark.parametrize("number", [0, -1])
def test_expiry_without_a_signal_is_only_logged(make_server, start_process, expiry_log, tmp_path, logged, number):
    notes = Notes()
    make_server(log_event=notes).start(expiry_log)
    process = start_process(HUNG, tmp_path / "timers", number)
    notes.wait("timer expired")
    eventually(logged)
    assert [entry["event"] for entry in logged()] == ["timer expired"]
    assert expiry_log.expiries() == []
    assert process.poll() is None


class JumpingClock(SystemClock):
    """A clock that is `ahead` by some seconds."""

    ahead = 0.0

    def now(self):
        return later(super().now(), self.ahead)


class SetClock(SystemClock):
    """A clock that stands still."""

    def __init__(self):
        self.time = SystemClock().now()

    def now(self):
        return self.time


def test_clients_can_still_release_after_an_agent_pause(make_server, expiry_log, tmp_path):
    """The agent was paused beyond the deadline, and the release did not fit into the full pipe."""
    clock = SetClock()
    server = make_server(max_interval=0.05, clock=clock)
    server.start(expiry_log)
    client = FileTimerClient(tmp_path / "timers", patience=LIMIT_S)
    client.acquire("released late", time.time() + 70)
    eventually(lambda: server.taken == 1)
    clock.time = later(clock.time, 100)
    threading.Event().wait(0.2)  # several turns, in which the timer could expire
    client.release("released late")
    client.acquire("last", time.time() + 1)
    eventually(lambda: server.taken == 3)
    clock.time = later(clock.time, 3)
    assert expiry_log.scopes() == []


def test_agent_process_can_set_timers(make_server, expiry_log, tmp_path):
    clock = JumpingClock()
    make_server(clock=clock).start(expiry_log)
    client = FileTimerClient(tmp_path / "timers")
    client.acquire("released", time.time() + 60)
    client.release("released")
    clock.ahead = 100
    client.acquire("last", time.time() + 70)
    assert expiry_log.scopes() == []
    assert expiry_log.expiries()[0].worker_pid == os.getpid()


def test_past_deadline_is_reported_immediately(make_server, expiry_log, tmp_path):
    make_server().start(expiry_log)
    FileTimerClient(tmp_path / "timers").acquire("last", time.time() - 5)
    expiry_log.scopes()
    assert expiry_log.expiries()[0].late >= 5


def test_idle_server_starts_and_stops_immediately(make_server):
    before = set(threading.enumerate())
    server = make_server(max_interval=60)
    server.start()
    server.stop()
    assert set(threading.enumerate()) <= before


def test_foreign_bytes_are_counted_and_logged_once(make_server, expiry_log, tmp_path, logged):
    server = make_server()
    server.start(expiry_log)
    writer = os.open(tmp_path / "timers", os.O_WRONLY)
    for _ in range(20):
        os.write(writer, b"\0\xff" * 30_000 + b"\n")
        os.write(writer, b"[[[[\n" * 100)
    os.write(writer, b'torn {"version": 1, "pid')
    FileTimerClient(tmp_path / "timers").acquire("last", time.time() + 0.05)
    os.close(writer)
    assert expiry_log.scopes() == []
    assert server.fault() == ""
    assert server.refused == {"unreadable": 20 + 2000 + 1}
    assert [entry["event"] for entry in logged()] == ["timer request refused"]


FLOOD = """
import os, sys
pipe = os.open(sys.argv[1], os.O_WRONLY)
print("flooding", flush=True)
while True: os.write(pipe, sys.argv[2].encode().decode("unicode_escape").encode() * 1000)
"""


@pytest.mark.parametrize("junk", [r"\n", r"{\n", r'{"version"\n', r'{"version"}\n'])
def test_expiry_is_reported_during_a_flood(make_server, start_process, expiry_log, tmp_path, junk):
    before = set(threading.enumerate())
    server = make_server(max_interval=60)
    server.start(expiry_log)
    FileTimerClient(tmp_path / "timers").acquire("last", time.time() + 0.5)
    flood = start_process(FLOOD, tmp_path / "timers", junk)
    assert flood.stdout.readline() == "flooding\n"
    assert expiry_log.scopes() == []
    assert expiry_log.expiries()[0].late < BOUND_S
    assert flood.poll() is None
    server.stop()
    assert set(threading.enumerate()) <= before


def test_removed_pipe_is_recreated_while_server_runs(make_server, expiry_log, tmp_path, logged):
    clock = JumpingClock()
    server = make_server(max_interval=0.05, clock=clock)
    server.start(expiry_log)
    early = FileTimerClient(tmp_path / "timers")
    early.acquire("released", time.time() + 60)
    (tmp_path / "timers").unlink()
    FileTimerClient(tmp_path / "timers", patience=LIMIT_S).acquire("last", time.time() + 70)
    early.release("released")
    eventually(lambda: server.taken == 3)
    assert [entry["event"] for entry in logged()] == ["timer pipe recreated"]
    clock.ahead = 100
    assert expiry_log.scopes() == []
    assert server.fault() == ""


def test_missing_pipe_is_a_fault_until_it_is_recreated(make_server, expiry_log, tmp_path, logged):
    folder = tmp_path / "folder"
    folder.mkdir()
    server = make_server(folder / "timers", max_interval=0.02)
    server.start(expiry_log)
    folder.rename(tmp_path / "gone")  # atomically: a removed pipe may be recreated before its folder is removed
    eventually(server.fault)
    assert "cannot be created again: No such file" in server.fault()
    assert [entry["event"] for entry in logged()] == ["watchdog lost"]
    folder.mkdir()
    eventually(lambda: not server.fault())
    FileTimerClient(folder / "timers", patience=LIMIT_S).acquire("last", time.time())
    assert expiry_log.scopes() == []


class StoppingClock(SystemClock):
    """A clock that raises in the reading thread once it is `broken`."""

    broken = False

    def now(self):
        if self.broken:
            raise ZeroDivisionError("the clock broke")
        return super().now()


def test_ended_thread_is_a_fault(make_server, expiry_log, tmp_path, logged):
    clock = StoppingClock()
    server = make_server(clock=clock)
    server.start(expiry_log)
    clock.broken = True
    FileTimerClient(tmp_path / "timers").acquire("x", time.time() + 60)
    eventually(server.fault)
    assert server.fault() == "the thread of the file timer has ended: ZeroDivisionError: the clock broke"
    assert [entry["event"] for entry in logged()] == ["watchdog lost"]
    server.stop()
    assert not (tmp_path / "timers").exists()


def test_error_in_log_event_does_not_stop_the_server(make_server, expiry_log, tmp_path, logged):
    def raising(name, request):
        raise ZeroDivisionError(name)

    server = make_server(log_event=raising)
    server.start(expiry_log)
    FileTimerClient(tmp_path / "timers").acquire("last", time.time())
    assert expiry_log.scopes() == []
    assert {entry["event"] for entry in logged()} == {"event lost"}
    assert server.fault() == ""


def test_second_start_raises(make_server, expiry_log):
    server = make_server()
    server.start(expiry_log)
    with pytest.raises(RuntimeError, match="started only once"):
        server.start(expiry_log)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf")])
def test_invalid_interval_is_refused(tmp_path, interval):
    with pytest.raises(ValueError, match="max_interval"):
        FileTimerServer(tmp_path / "timers", "job", interval)


class CountingClock(SystemClock):
    """A clock that counts readings."""

    reads = 0

    def now(self):
        self.reads += 1
        return super().now()


def test_idle_server_does_not_poll(make_server, expiry_log):
    clock = CountingClock()
    server = make_server(max_interval=60, clock=clock)
    server.start(expiry_log)
    assert not threading.Event().wait(0.3)
    assert clock.reads < 10


STORM = """
import sys
from elastic_file_timer import FileTimerClient, expires
client = FileTimerClient(sys.argv[1], patience=30)
for step in range(1000):
    with expires(60, f"step {step % 7}", client): pass
print("done")
"""


def test_eight_busy_workers_lose_no_requests(make_server, start_process, expiry_log, tmp_path):
    server = make_server()
    server.start(expiry_log)
    workers = [start_process(STORM, tmp_path / "timers") for _ in range(8)]
    for worker in workers:
        assert worker.communicate(timeout=LIMIT_S) == ("done\n", "")
    FileTimerClient(tmp_path / "timers").acquire("last", time.time())
    assert expiry_log.scopes() == []
    assert (server.taken, server.refused) == (8 * 2000 + 1, {})


FORKS = """
import os, sys
from elastic_file_timer import FileTimerServer
server = FileTimerServer(sys.argv[1], "job")
before = set(os.listdir("/proc/self/fd"))
server.start()
if os.fork() == 0:
    server.stop()
    print(*set(os.listdir("/proc/self/fd")) - before, "held,", "there" if os.path.exists(sys.argv[1]) else "gone")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


def test_forked_worker_does_not_hold_the_pipe_of_a_killed_agent(make_server, start_process, expiry_log, tmp_path):
    agent = start_process(FORKS, tmp_path / "timers")
    assert agent.stdout.readline() == "held, there\n"
    agent.kill()
    agent.wait(LIMIT_S)
    make_server().start(expiry_log)


CANNOT_START = """
import os, sys, threading
from elastic_file_timer import FileTimerServer
server = FileTimerServer(sys.argv[1], "job")
before = os.listdir("/proc/self/fd")
threading.stack_size(1 << 40)
try:
    server.start()
except RuntimeError as error:
    print(error, os.listdir("/proc/self/fd") == before, os.path.exists(sys.argv[1]))
"""


def test_failed_thread_start_leaves_nothing(start_process, tmp_path):
    process = start_process(CANNOT_START, tmp_path / "timers")
    assert process.communicate(timeout=LIMIT_S)[0] == "can't start new thread True False\n"

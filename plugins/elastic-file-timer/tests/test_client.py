"""The client, with a server, without one, and with one that does not read."""

import contextlib
import json
import os
import pickle
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from elastic_file_timer import FileTimerClient
from elastic_file_timer.client import from_environment
from elastic_file_timer.pipe import TimerPipe
from elastic_testing import Background, FakeClock, eventually

from elastic_core.support.processes import process_start_time

LIMIT_S = 60
PATIENCE = 0.2
BOUND_S = 20  # faults take longer than this, or never end; a machine that stalls is faster
FAR = 4e9  # seconds since the epoch


@pytest.fixture
def pipe(tmp_path):
    """An open pipe that is read only when a test does so."""
    pipe = TimerPipe(tmp_path / "timers")
    pipe.open()
    yield pipe
    pipe.close()


def requests(pipe):
    return [json.loads(line) for reader in pipe.readers for lines in reader.read() for line in lines if line]


def fill(path):
    """Fill the pipe to the last byte; returns the number of bytes written."""
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    written = 0
    try:
        for size in (65536, 1):
            while True:
                try:
                    written += os.write(writer, b"\n" * size)
                except BlockingIOError:
                    break
    finally:
        os.close(writer)
    return written


def descriptors_of(pipe):
    """The number of this process's descriptors that refer to the pipe."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed in the meantime
            found += os.path.samestat(os.stat(f"/proc/self/fd/{name}"), pipe.path.stat())
    return found


def seconds(function):
    begun = time.monotonic()
    function()
    return time.monotonic() - begun


def test_request_names_process_scope_deadline_and_run(pipe):
    client = FileTimerClient(str(pipe.path), signal.SIGTERM, "job")
    now = time.monotonic()
    client.acquire("load", time.time() + 60)
    client.release("load")
    acquired, released = requests(pipe)
    assert (acquired["pid"], acquired["started"]) == (os.getpid(), process_start_time(os.getpid()))
    assert (acquired["scope_id"], acquired["signal"], acquired["run_id"]) == ("load", 15, "job")
    assert now + 59.9 < acquired["deadline"] <= time.monotonic() + 60
    assert released["expiration_time"] < 0
    assert {name: released[name] for name in ("pid", "started", "scope_id", "run_id")}.items() <= acquired.items()


def test_run_id_comes_from_the_workers_environment(pipe, start_process):
    script = """
from elastic_core.watchdog import expires
with expires(60, "load"): pass
"""
    maker = "elastic_file_timer.client:from_environment"
    environ = {"TORCHELASTIC_TIMER_FILE": str(pipe.path), "TORCHELASTIC_RUN_ID": "job7", "ELASTIC_TIMER_CLIENT": maker}
    process = start_process(script, **environ)
    assert process.wait(LIMIT_S) == 0
    assert [request["run_id"] for request in requests(pipe)] == ["job7", "job7"]


def test_missing_pipe_variable_is_named():
    assert "TORCHELASTIC_TIMER_FILE" not in os.environ
    with pytest.raises(RuntimeError, match="TORCHELASTIC_TIMER_FILE"):
        from_environment()


def test_client_imports_only_the_standard_library(start_process):
    script = """
import sys, elastic_file_timer
elastic_file_timer.FileTimerClient("/x")
print({"psutil", "structlog", "pluggy", "torch", "elastic_core.log"} & set(sys.modules))
"""
    process = start_process(script)
    assert process.communicate(timeout=LIMIT_S) == ("set()\n", "")


@pytest.mark.integration
def test_forked_process_sends_its_own_pid(pipe):
    client = FileTimerClient(pipe.path)
    client.acquire("parent", FAR)
    child = os.fork()
    if child == 0:
        try:
            client.acquire("child", FAR)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    parent, other = requests(pipe)
    assert (parent["pid"], parent["scope_id"]) == (os.getpid(), "parent")
    assert (other["pid"], other["scope_id"]) == (child, "child")
    assert other["started"] >= parent["started"]


class Labelled(FileTimerClient):
    label = ""


def test_client_can_be_pickled(pipe):
    client = Labelled(pipe.path, 0, "job")
    client.label = "mine"
    client.acquire("before", FAR)
    copy = pickle.loads(pickle.dumps(client))
    assert (type(copy), copy.label) == (Labelled, "mine")
    copy.acquire("after", FAR)
    assert [(each["scope_id"], each["signal"], each["run_id"]) for each in requests(pipe)] == [
        ("before", 0, "job"),
        ("after", 0, "job"),
    ]


def test_client_finds_its_relative_pipe_after_chdir(pipe, tmp_path, start_process):
    script = """
import os, sys
from elastic_file_timer import FileTimerClient
os.chdir(sys.argv[1])
client = FileTimerClient("timers")
os.chdir("/")
client.acquire("x", 4e9)
"""
    process = start_process(script, tmp_path)
    assert process.communicate(timeout=LIMIT_S) == ("", "")
    assert len(requests(pipe)) == 1


@pytest.mark.parametrize("when", [-1, float("nan"), float("inf")])
def test_invalid_deadline_is_refused(pipe, when):
    with pytest.raises(ValueError, match="since the epoch"):
        FileTimerClient(pipe.path).acquire("x", when)


def test_too_long_scope_is_refused(pipe):
    client = FileTimerClient(pipe.path)
    with pytest.raises(ValueError, match="shorter scope"):
        client.acquire("x" * 4096, FAR)
    client.release("x" * 4096)
    client.acquire("x" * 3500, FAR)
    client.acquire('é"\n\0', FAR)
    assert [each["scope_id"] for each in requests(pipe)] == ["x" * 3500, 'é"\n\0']


def test_acquire_without_a_server_fails_in_bounded_time(tmp_path):
    os.mkfifo(tmp_path / "unread")
    for path in (tmp_path / "missing", tmp_path / "unread"):
        client = FileTimerClient(path, patience=PATIENCE)

        def acquire(client=client):
            with pytest.raises(BrokenPipeError, match="no timer server reads the pipe"):
                client.acquire("x", FAR)

        assert PATIENCE <= seconds(acquire) < BOUND_S
        assert seconds(lambda path=path: FileTimerClient(path, patience=60).release("x")) < BOUND_S


def test_file_that_is_not_a_pipe_is_refused_and_unchanged(tmp_path):
    path = tmp_path / "file"
    path.write_text("work")
    client = FileTimerClient(path)
    with pytest.raises(BrokenPipeError, match="not a pipe"):
        client.acquire("x", FAR)
    client.release("x")
    assert path.read_text() == "work"


def test_acquire_waits_for_a_late_server(tmp_path):
    pipe = TimerPipe(tmp_path / "timers")
    client = FileTimerClient(pipe.path, patience=LIMIT_S)
    waiting = Background(lambda: client.acquire("x", FAR))
    pipe.open()
    waiting.result()
    assert [each["scope_id"] for each in requests(pipe)] == ["x"]
    pipe.close()


def test_client_reconnects_to_a_restarted_server(tmp_path):
    client = FileTimerClient(tmp_path / "timers")
    for scope in ("first", "second"):
        pipe = TimerPipe(tmp_path / "timers")
        pipe.open()
        client.acquire(scope, FAR)
        client.release(scope)
        assert [each["scope_id"] for each in requests(pipe)] == [scope, scope]
        pipe.close()


def test_acquire_waits_while_the_pipe_is_full(pipe):
    fill(pipe.path)
    client = FileTimerClient(pipe.path, patience=LIMIT_S)
    waiting = Background(lambda: client.acquire("x", FAR))
    (found,) = eventually(lambda: requests(pipe))
    waiting.result()
    assert found["scope_id"] == "x"


def test_full_pipe_delays_work_once_and_release_is_sent_later(pipe):
    """As with a paused agent: work continues without a timer until the pipe is read again."""
    client = FileTimerClient(pipe.path, patience=PATIENCE)
    client.acquire("before", FAR)
    assert fill(pipe.path) > 100_000
    assert PATIENCE <= seconds(lambda: client.release("before")) < BOUND_S

    other = FileTimerClient(pipe.path, patience=PATIENCE)
    with pytest.warns(RuntimeWarning, match="no timer for 'x': .* has not read its pipe") as warned:
        assert PATIENCE <= seconds(lambda: other.acquire("x", FAR)) < BOUND_S
        begun = time.monotonic()
        for _ in range(1000):
            other.acquire("x", FAR)
            other.release("x")
        assert time.monotonic() - begun < 1000 * PATIENCE
    assert len(warned) == 1
    requests(pipe)
    client.acquire("after", FAR)
    sent = [(each["scope_id"], each["expiration_time"]) for each in requests(pipe)]
    assert sent == [("before", -1.0), ("after", FAR)]


def test_closing_all_descriptors_does_not_corrupt_other_files(pipe, tmp_path, start_process):
    script = """
import os, sys
from elastic_file_timer import FileTimerClient
client = FileTimerClient(sys.argv[1])
client.acquire("before", 4e9)
os.closerange(3, 100)
files = [open(f"{sys.argv[2]}/work{number}", "wb") for number in range(5)]
client.acquire("after", 4e9)
client.release("after")
del client
for file in files: file.write(b"work"); file.close()
"""
    process = start_process(script, pipe.path, tmp_path)
    assert process.communicate(timeout=LIMIT_S) == ("", "")
    assert [each["scope_id"] for each in requests(pipe)] == ["before", "after", "after"]
    assert [path.read_text() for path in tmp_path.glob("work*")] == ["work"] * 5


def test_concurrent_threads_lose_nothing_and_leak_nothing(pipe):
    before, own = len(os.listdir("/proc/self/fd")), descriptors_of(pipe)
    together = threading.Barrier(8)

    def work(client, name):
        together.wait(LIMIT_S)
        for _ in range(50):
            client.acquire(name, FAR)
            client.release(name)

    with ThreadPoolExecutor(8) as pool:
        client = FileTimerClient(pipe.path)
        for done in [pool.submit(work, client, f"{number}") for number in range(8)]:
            done.result(LIMIT_S)
        del client
    assert len(requests(pipe)) == 800
    assert descriptors_of(pipe) == own == 1
    assert len(os.listdir("/proc/self/fd")) <= before  # descriptors of other tests may be closed in the meantime


def test_acquire_waits_once_despite_many_unsent_releases(pipe, monkeypatch):
    clock = FakeClock()

    class Poll:
        """A poll that times out on the fake clock."""

        def register(self, descriptor, events):
            assert events == select.POLLOUT

        def poll(self, milliseconds):
            clock.advance(milliseconds / 1000)

    client = FileTimerClient(pipe.path, patience=PATIENCE, clock=clock)
    scopes = [f"scope{number}" for number in range(10)]
    for scope in scopes:
        client.acquire(scope, FAR)
    fill(pipe.path)
    with monkeypatch.context() as patched:
        patched.setattr(select, "poll", Poll)
        for scope in scopes:
            client.release(scope)
        begun = clock.now()
        with pytest.warns(RuntimeWarning, match="has not read its pipe"):
            client.acquire("x", FAR)
        assert clock.now() - begun == pytest.approx(PATIENCE, abs=0.01)  # whole milliseconds
    requests(pipe)
    client.acquire("after", FAR)
    assert [each["scope_id"] for each in requests(pipe)] == [*scopes, "after"]

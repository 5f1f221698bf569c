from __future__ import annotations

import contextlib
import io
import json
import os
import select
import subprocess
import sys
import threading
import time

import pytest
import structlog

from elastic_core import log
from elastic_core.clock import Instant


class StoppedClock:
    def now(self):
        return Instant(0.0)

    def timestamp(self):
        return 1_000_000_000.25


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def output():
    """Function that configures logging to a stream and returns a function that returns the lines."""

    def output(style="human", level="debug", stream=None, **more):
        stream = stream if stream is not None else io.StringIO()
        log.configure(format=style, level=level, stream=stream, clock=StoppedClock(), **more)
        return lambda: stream.getvalue().splitlines()

    yield output
    log.configure(level="warning")


def test_text_line_has_time_level_event_and_fields(output):
    lines = output()
    log.get_logger().info("round formed", round=1, seconds=0.5, node="node7")
    assert lines() == ["2001-09-09T01:46:40.250Z info     round formed: round=1 seconds=0.5 node=node7"]


def test_terminal_shows_local_time(output, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        lines = output(stream=Terminal())
        log.get_logger().info("round formed", round=1)
        assert lines() == ["07:31:40 info     round formed: round=1"]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([14485, 14486], "14485,14486"),
        (["a b", "c"], '"a b,c"'),
        ([], '""'),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        (30.0, "30"),
        (0.009, "0.009"),
        (1234567.5, "1234567.5"),
        (7, "7"),
    ],
)
def test_values_are_not_python_literals(output, value, shown):
    lines = output()
    log.get_logger().info("workers started", value=value)
    assert lines()[0].endswith(f" value={shown}")


def test_values_cannot_control_a_terminal(output):
    lines = output()
    log.get_logger().warning("plugin failed", error="a\nb", colour="\x1b[31m", name='say "hi"', empty="", ok="ä")
    (line,) = lines()
    assert line.endswith(r'error="a\nb" colour="\u001b[31m" name="say \"hi\"" empty="" ok=ä')


def test_json_line_has_all_bound_fields_with_their_types(output):
    lines = output("json")
    typed = {"pids": [1, 2], "notified": True, "grace": 30.0}
    log.get_logger(run_id="job").bind(node="node7").error("worker failed", rank=3, reason="a\nb", **typed)
    assert [json.loads(line) for line in lines()] == [
        {
            "event": "worker failed",
            "level": "error",
            "timestamp": "2001-09-09T01:46:40.250Z",
            "run_id": "job",
            "node": "node7",
            "rank": 3,
            "reason": "a\nb",
            **typed,
        }
    ]


@pytest.mark.parametrize("style", ["human", "json"])
def test_fields_may_be_named_like_structlog_arguments(output, style):
    lines = output(style)
    log.get_logger(logger="l").info("round over", method_name="m", event="e", args=1)
    (line,) = lines()
    if style == "json":
        assert json.loads(line).items() >= {"event": "round over", "logger": "l", "method_name": "m", "args": 1}.items()
    else:
        assert line.endswith("round over: logger=l method_name=m args=1")


@pytest.mark.parametrize("style", ["human", "json"])
def test_traceback_follows_the_line(output, style):
    lines = output(style)
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        log.get_logger().error("metric lost", exc_info=error)
    first, *rest = lines()
    if style == "json":
        assert "RuntimeError: boom" in json.loads(first)["exception"]
        assert rest == []
    else:
        assert rest[-1] == "    RuntimeError: boom"
        assert all(line.startswith("    ") for line in rest)


def test_exception_is_logged_as_an_error_with_its_traceback(output):
    lines = output("json")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.get_logger(plugin="p").exception("pager failed", rank=3)
    found = json.loads(lines()[0])
    assert (found["level"], found["plugin"], found["rank"]) == ("error", "p", 3)
    assert "RuntimeError: boom" in found["exception"]


def test_stack_is_shown_below_the_line(output):
    lines = output()
    log.get_logger().error("worker hangs", rank=3, stack="Thread 1:\n  in step\x1b")
    assert lines()[0].endswith("worker hangs: rank=3")
    assert lines()[1:] == ["    Thread 1:", "      in step\\x1b"]


def test_only_lines_of_the_level_and_above_are_written(output):
    lines = output("json", level="warning")
    logger = log.get_logger()
    for write in (logger.debug, logger.info, logger.warning, logger.error, logger.critical):
        write("round over")
    assert [json.loads(line)["level"] for line in lines()] == ["warning", "error", "critical"]


def test_loggers_follow_later_configuration(output):
    logger = log.get_logger()
    first = output()
    logger.info("run started")
    second = output("json")
    logger.info("run started")
    assert len(first()) == len(second()) == 1


def test_colors_only_on_a_terminal_and_if_enabled(output, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain, colourful = output(), output(stream=Terminal())
    log.get_logger().error("worker failed")
    assert "\x1b[31m" in colourful()[0]
    monkeypatch.setenv("NO_COLOR", "1")
    unwanted = output(stream=Terminal())
    log.get_logger().error("worker failed")
    assert "\x1b" not in unwanted()[0]
    assert plain() == []


def test_current_stderr_is_used(capsys):
    log.configure(level="info")
    log.get_logger().info("run started")
    assert "run started" in capsys.readouterr().err
    log.configure(level="warning")


def test_broken_stream_never_raises(output, monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    output(stream=Broken())
    log.get_logger().error("worker failed")
    closed = io.StringIO()
    output(stream=closed)
    closed.close()
    log.get_logger().error("worker failed")
    log.configure()
    monkeypatch.setattr(sys, "stderr", None)
    log.get_logger().error("worker failed")


def test_unprintable_field_never_raises(output):
    class Hostile:
        def __repr__(self):
            raise RuntimeError

        __str__ = __repr__

    lines = output()
    log.get_logger().error("worker failed", what=Hostile())
    assert lines() == ["worker failed (fields not shown: RuntimeError)"]


def test_host_applications_structlog_is_left_alone(output):
    calls = []

    def spy(logger, method, fields):
        calls.append(fields)
        raise structlog.DropEvent

    structlog.configure(processors=[spy])
    try:
        lines = output()
        log.get_logger().info("run started")
        assert structlog.get_config()["processors"] == [spy]
    finally:
        structlog.reset_defaults()
    assert len(lines()) == 1
    assert calls == []


def test_lines_of_concurrent_threads_are_not_mixed(output):
    lines = output("json")
    logger = log.get_logger()

    def write(thread):
        for number in range(50):
            logger.info("still waiting", thread=thread, number=number)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = {(line["thread"], line["number"]) for line in map(json.loads, lines())}
    assert len(seen) == len(lines()) == 200


@pytest.mark.integration
def test_forked_child_can_log_despite_held_lock(output):
    entered, leave = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text):
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                leave.wait(60)
            return super().write(text)

    output(stream=Slow())
    writer = threading.Thread(target=log.get_logger().info, args=("still waiting",))
    writer.start()
    assert entered.wait(60)
    child = os.fork()
    if child == 0:
        try:
            log.get_logger().info("still waiting")
            os._exit(0)
        finally:
            os._exit(1)
    leave.set()
    writer.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.integration
def test_structlog_is_imported_with_the_first_line():
    code = (
        "from elastic_core import log\n"
        "log.configure(level='info'); log.get_logger().bind(a=1).debug('run started')\n"
        "before = 'structlog' in sys.modules\n"
        "log.get_logger().info('run started')\n"
        "print(before, 'structlog' in sys.modules)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True"


class Pipe:
    """A pipe that is not read until `read` is called. `stream` is its write end."""

    def __init__(self):
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.stream = os.fdopen(writer, "w", encoding="utf-8")

    def fill(self):
        os.set_blocking(self.stream.fileno(), False)
        try:
            while True:
                os.write(self.stream.fileno(), b"." * select.PIPE_BUF)
        except BlockingIOError:
            os.set_blocking(self.stream.fileno(), True)

    def read(self, most=1 << 20):
        return os.read(self.reader, most).decode()


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    pipe.stream.close()


@pytest.mark.parametrize("style", ["human", "json"])
def test_stalled_reader_does_not_block_and_sees_drop_count(output, pipe, style):
    output(style, stream=pipe.stream)
    pipe.fill()
    begun = time.monotonic()
    for _ in range(100):
        log.get_logger().info("run started")
    assert time.monotonic() - begun < 30  # half a second for the first line, none for the rest
    pipe.read()
    for _ in range(2):
        log.get_logger().info("round formed")
    dropped, *rest = pipe.read().splitlines()
    assert "lines dropped" in dropped and "100" in dropped
    assert len(rest) == 2 and all("round formed" in line for line in rest)
    if style == "json":
        assert json.loads(dropped).items() >= {"event": "lines dropped", "level": "warning", "lines": 100}.items()


def test_slow_reader_misses_nothing(output, pipe):
    output("json", stream=pipe.stream, patience=60)  # the reader's thread may be scheduled late
    pipe.fill()

    def read():
        time.sleep(0.2)
        pipe.read()

    reader = threading.Thread(target=read)
    reader.start()
    log.get_logger().info("run started")
    reader.join()
    log.get_logger().info("round formed")
    lines = pipe.read().strip(".").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["run started", "round formed"]


@pytest.mark.parametrize("character", ["x", "\U0001f525"])
def test_truncated_line_does_not_corrupt_the_next(output, pipe, character):
    output("human", stream=pipe.stream)
    pipe.fill()
    pipe.read(select.PIPE_BUF)  # room for a part of the line
    log.get_logger().error("worker failed", reason=character * 100_000)
    first = pipe.read()
    log.get_logger().info("round formed")
    assert "worker failed: reason=" + character in first.strip(".")
    assert not first.endswith("\n")
    cut, dropped, line = pipe.read().splitlines()
    assert cut == ""
    assert dropped.endswith("lines dropped: lines=1")
    assert line.endswith("round formed")


def test_long_line_is_complete(output, pipe):
    output("human", stream=pipe.stream)
    log.get_logger().error("worker failed", reason="x" * 20_000)
    assert pipe.read().endswith("reason=" + "x" * 20_000 + "\n")


def test_files_are_written_directly(output, tmp_path):
    path = tmp_path / "agent.log"
    with path.open("w") as stream:
        output(stream=stream)
        log.get_logger().error("worker failed", reason="x" * 20_000)
        assert len(path.read_text().splitlines()) == 1


def test_closed_pipe_never_raises(output):
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    output(stream=stream)
    log.get_logger().error("worker failed")
    os.close(writer)
    log.get_logger().error("worker failed")
    with contextlib.suppress(OSError):
        stream.close()


UNASKED = """
import sys
from elastic_core import log
from elastic_core.builtin import MemoryStore
from elastic_core.rendezvous import RendezvousParameters, create_handler
from elastic_testing import MemoryBackend, SharedMemory, eventually

if "handled" in sys.argv:
    import logging
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
log.get_logger(node="a").warning("entry dropped", reason="a b")
log.get_logger().error("round over")
log.get_logger().info("round formed")
memory = SharedMemory()
params = RendezvousParameters("memory", "", "job", 1, 1, keep_alive_interval=0.05)
handler = create_handler(MemoryStore(), MemoryBackend(memory), params)
handler.next_rendezvous()
memory.forget()
eventually(lambda: memory.state is not None)
handler.shutdown()
if "job" in sys.argv:
    log.show_unless_configured()
    log.get_logger().warning("store out of reach")
"""


def unasked(*words):
    done = subprocess.run([sys.executable, "-c", UNASKED, *words], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.mark.integration
def test_logging_handler_receives_lines():
    said = unasked("handled")
    assert 'elastic_core WARNING entry dropped: node=a reason="a b"\n' in said
    assert "elastic_core ERROR round over\n" in said
    assert "elastic_core WARNING store lost its state: round=1\n" in said
    assert "round formed" not in said


@pytest.mark.integration
def test_library_is_silent_until_a_job_runs():
    (line,) = unasked("job").splitlines()
    assert "store out of reach" in line

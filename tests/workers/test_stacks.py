"""Dumps picked out of a stream, arranged and bounded; and a program that is asked where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.workers import sessions
from elastic_core.workers.hang import (
    MOST_CHARACTERS,
    MOST_LINES,
    DumpSink,
    abort,
    arranged,
    bounded,
    pyspy_dump,
    silence_reason,
)

DUMP = """\
Fatal Python error: Aborted

Thread 0x00007f0000000002 (most recent call first):
  File "loader.py", line 2 in fetch
  File "threading.py", line 982 in run

Current thread 0x00007f0000000001 (most recent call first):
  File "train.py", line 6 in step
  File "train.py", line 7 in <module>

Extension modules: numpy.core, torch._C (total: 2)
"""
LONG = 30.0
ARRANGED = """\
Current thread 0x00007f0000000001 (most recent call first):
  File "train.py", line 6 in step
  File "train.py", line 7 in <module>

Thread 0x00007f0000000002 (most recent call first):
  File "loader.py", line 2 in fetch
  File "threading.py", line 982 in run"""


def feed(sink, text):
    """All lines, and what the sink left of them."""
    return [left for line in text.encode().splitlines(keepends=True) if (left := sink.take(line)).strip()]


def test_a_dump_is_taken_out_of_the_stream_and_the_main_thread_comes_first():
    sink = DumpSink()
    assert feed(sink, f"before\n50 %{DUMP}a line of a child process\n") == [
        b"before\n",
        b"50 %",
        b"a line of a child process\n",
    ]
    assert sink.text() == ARRANGED


def test_without_a_dump_nothing_is_taken():
    sink = DumpSink()
    text = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nThread 0x1 is a name\n'
    assert b"".join(feed(sink, text)) == text.encode()
    assert sink.text() == ""


def test_dumps_of_two_processes_are_both_kept():
    sink = DumpSink()
    feed(sink, DUMP + DUMP)
    assert sink.text() == f"{ARRANGED}\n\n{ARRANGED}"


TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    eval("1 +")

  File "<string>", line 1
    1 +
SyntaxError: invalid syntax
"""
OTHERS = ['  File "here.py", line 1 in a text of the worker', "...", "", "  <a tag>", "Extension modules: none"]


@pytest.mark.parametrize("between", ["", "\n\n", "a line of the worker\n"])
def test_what_the_worker_says_after_the_dump_of_a_child_is_its_own(between):
    sink = DumpSink()
    after = between + TRACEBACK + "\n".join(OTHERS)
    assert b"".join(feed(sink, DUMP + after)).split() == after.encode().split()
    assert sink.text() == ARRANGED
    assert b"".join(feed(sink, TRACEBACK)).split() == TRACEBACK.encode().split()


def test_dumps_before_and_after_a_traceback_and_with_blank_lines_are_whole():
    sink = DumpSink()
    spaced = DUMP.replace("\n", "\n\n")
    assert b"".join(feed(sink, spaced + TRACEBACK + DUMP)).split() == TRACEBACK.encode().split()
    assert sink.text() == f"{ARRANGED}\n\n{ARRANGED}"


def test_a_line_of_another_process_within_a_dump_does_not_cost_the_threads_after_it():
    sink = DumpSink()
    assert feed(sink, DUMP.replace("\nCurrent", "a line of a child\nCurrent")) == [b"a line of a child\n"]
    assert sink.text() == ARRANGED


@pytest.mark.parametrize(
    "line", ["  ...", "  Garbage-collecting", "  <truncated rest of calls>", "  File ???, line ??? in f"]
)
def test_lines_that_faulthandler_writes_now_and_then_are_of_the_dump(line):
    sink = DumpSink()
    assert feed(sink, DUMP.replace("  File", f"{line}\n  File", 1)) == []
    assert sink.text().splitlines()[-3] == line


def test_the_last_few_dumps_are_kept():
    sink = DumpSink()
    for number in range(100):
        feed(sink, f"Fatal Python error: Aborted\nThread 0x{number} (most recent call first):\n")
    assert [line for line in sink.text().splitlines() if line] == [
        f"Thread 0x{number} (most recent call first):" for number in range(96, 100)
    ]


@pytest.mark.parametrize("what", ["Segmentation fault", "Bus error", "Illegal instruction"])
def test_crashes_are_dumps_too(what):
    sink = DumpSink()
    assert feed(sink, DUMP.replace("Aborted", what)) == []
    assert sink.text() == ARRANGED


def test_what_python_says_of_a_fault_of_its_own_is_left_where_it_is():
    sink = DumpSink()
    text = "Fatal Python error: init_import_site: Failed to import the site module\n"
    assert feed(sink, text) == [text.encode()]


def test_the_stack_in_c_comes_last():
    c = 'Current thread\'s C stack trace (most recent call first):\n  Binary file "/usr/lib/libc.so.6", at raise+0x1\n'
    sink = DumpSink()
    feed(sink, DUMP + c)
    assert sink.text() == f"{ARRANGED}\n\n{c.rstrip()}"


def test_of_hundreds_of_threads_the_main_one_is_there_and_the_rest_is_counted():
    other = [
        line
        for n in range(90)
        for line in (f"Thread 0x{n} (most recent call first):", *['  File "x", line 1 in y'] * 9)
    ]
    main = ["Thread 0xm (most recent call first):", '  File "train.py", line 1 in main']
    text = arranged([*other, *main])
    lines = text.splitlines()
    assert lines[:2] == main
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "... and 792 more lines"


@given(st.text(), st.integers(1, 2000))
def test_a_text_is_bounded_to_whole_lines(text, times):
    told = bounded(f"{text}\n" * times)
    lines = told.splitlines()
    assert len(lines) <= MOST_LINES + 1
    assert len(told) <= MOST_CHARACTERS + 100


def test_it_is_read_while_it_is_fed():
    """Processes that crash one after the other, while the agent looks."""
    sink = DumpSink()
    head = "Thread 0x1 (most recent call first):"
    fed = threading.Event()

    def feed_on():
        while not fed.is_set():
            feed(sink, f"Fatal Python error: Aborted\n{head}\n")

    feed(sink, f"Fatal Python error: Aborted\n{head}\n")
    thread = threading.Thread(target=feed_on)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they take turns at any point
    thread.start()
    try:
        assert all(sink.text().startswith(head) for _ in range(5000))
    finally:
        fed.set()
        sys.setswitchinterval(before)
        thread.join()


@given(st.binary(max_size=300))
def test_any_bytes_can_come(data):
    sink = DumpSink()
    for line in (DUMP.encode() + data).splitlines(keepends=True):
        sink.take(line)
    assert sink.text().splitlines()[0].startswith(("Current thread", "Thread"))


@pytest.fixture
def sleeper(spawn, pipe, lines_of):
    """A function that starts a Python that says when it is ready and sleeps; its process id."""

    def sleeper(code="", *flags):
        ready = f"{code}\nimport os, sys, time\nos.write(int(sys.argv[1]), b'ready\\n')\ntime.sleep(600)"
        process = spawn(ready, pipe[1])
        lines_of(pipe[0])
        return process

    return sleeper


def test_processes_that_catch_sigabrt_are_known(sleeper):
    assert sessions.catches(sleeper("import faulthandler; faulthandler.enable()").pid, signal.SIGABRT)
    assert not sessions.catches(sleeper().pid, signal.SIGABRT)
    assert not sessions.catches(2**22 + 1, signal.SIGABRT)


def test_it_dies_of_sigabrt_without_a_core_dump_also_when_it_is_stopped(sleeper):
    process = sleeper()
    os.kill(process.pid, signal.SIGSTOP)
    abort(process.pid)
    _, status = os.waitpid(process.pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
    process.returncode = -signal.SIGABRT


def test_why_nothing_came(sleeper, until):
    process = sleeper()
    until(lambda: sessions.best_table().stat(process.pid).state == "S", "it to sleep")
    assert "did not react to SIGABRT for 0.5 s" in silence_reason(process.pid, 0.5)
    process.kill()
    process.wait()
    assert "it died of SIGABRT" in silence_reason(process.pid, 0.5)


@pytest.fixture
def spy(tmp_path):
    """A function that installs a py-spy made of shell; returns the environment in which it is found."""

    def spy(script):
        path = tmp_path / "py-spy"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return spy


@pytest.mark.integration
def test_what_py_spy_says_is_told(spy):
    text, why = pyspy_dump(77, spy('echo "asked: $*"; echo; echo "Thread 77 (idle)"'), LONG)
    assert (text, why) == ("asked: dump --pid 77\n\nThread 77 (idle)", "")


@pytest.mark.integration
def test_what_py_spy_could_not_do_is_told(spy):
    text, why = pyspy_dump(77, spy('echo "Error: Permission Denied" >&2; exit 1'), LONG)
    assert (text, why) == ("", "py-spy exited with 1 and printed: Error: Permission Denied")
    assert pyspy_dump(77, {"PATH": "/nowhere"}, LONG) == (
        "",
        "py-spy, which could read them from outside, is not installed",
    )


@pytest.mark.integration
def test_output_of_py_spy_is_bounded_while_it_writes(spy):
    text, why = pyspy_dump(77, spy("exec yes"), LONG)
    assert (text, why) == ("", "py-spy exited with 1 and printed: y")


@pytest.mark.integration
def test_a_py_spy_that_does_not_end_is_killed(spy, until, running, tmp_path, monkeypatch):
    said, wait = tmp_path / "said", subprocess.Popen.wait

    def wait_until_it_has_spoken(process, timeout):
        until(said.exists, "py-spy to speak")
        return wait(process, min(timeout, 0.5))

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_it_has_spoken)
    text, why = pyspy_dump(77, spy(f"echo $$; : > {said}; exec 1>&- 2>&-; sleep 600 & sleep 600"), LONG)
    assert text == ""
    assert f"did not answer within {LONG:g} s" in why
    pid = int(why.rpartition(" ")[2])
    until(lambda: not running(pid), "the end of py-spy")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes")
def test_a_stranger_that_is_gone_is_no_error():
    abort(2**22 + 1)

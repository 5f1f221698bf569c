"""Stack dumps extracted from a stream, arranged and bounded; and py-spy, if there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.workers.channel import MOST_CHARACTERS, MOST_LINES, DumpSink, arranged, bounded
from elastic_core.workers.hang import abort, pyspy_dump

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
    """Feed all lines; the parts that the sink left in the stream."""
    return [left for line in text.encode().splitlines(keepends=True) if (left := sink.take(line)).strip()]


def test_dump_is_removed_from_stream_and_main_thread_is_first():
    sink = DumpSink()
    assert feed(sink, f"before\n50 %{DUMP}a line of a child process\n") == [
        b"before\n",
        b"50 %",
        b"a line of a child process\n",
    ]
    assert sink.text() == ARRANGED


def test_stream_without_a_dump_is_unchanged():
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
OTHERS = ['  File "here.py", line 1 of the output', "...", "", "  <a tag>", "Extension modules: none"]


@pytest.mark.parametrize("between", ["", "\n\n", "a worker line\n"])
def test_worker_output_after_a_childs_dump_is_kept(between):
    sink = DumpSink()
    after = between + TRACEBACK + "\n".join(OTHERS)
    assert b"".join(feed(sink, DUMP + after)).split() == after.encode().split()
    assert sink.text() == ARRANGED
    assert b"".join(feed(sink, TRACEBACK)).split() == TRACEBACK.encode().split()


def test_dumps_around_a_traceback_are_kept_whole():
    sink = DumpSink()
    spaced = DUMP.replace("\n", "\n\n")
    assert b"".join(feed(sink, spaced + TRACEBACK + DUMP)).split() == TRACEBACK.encode().split()
    assert sink.text() == f"{ARRANGED}\n\n{ARRANGED}"


def test_foreign_line_inside_a_dump_does_not_end_it():
    sink = DumpSink()
    assert feed(sink, DUMP.replace("\nCurrent", "a line of a child\nCurrent")) == [b"a line of a child\n"]
    assert sink.text() == ARRANGED


@pytest.mark.parametrize(
    "line", ["  ...", "  Garbage-collecting", "  <truncated rest of calls>", "  File ???, line ??? in f"]
)
def test_rare_faulthandler_lines_belong_to_the_dump(line):
    sink = DumpSink()
    assert feed(sink, DUMP.replace("  File", f"{line}\n  File", 1)) == []
    assert sink.text().splitlines()[-3] == line


def test_only_the_last_few_dumps_are_kept():
    sink = DumpSink()
    for number in range(100):
        feed(sink, f"Fatal Python error: Aborted\nThread 0x{number} (most recent call first):\n")
    assert [line for line in sink.text().splitlines() if line] == [
        f"Thread 0x{number} (most recent call first):" for number in range(96, 100)
    ]


@pytest.mark.parametrize("what", ["Segmentation fault", "Bus error", "Illegal instruction"])
def test_crash_dumps_are_recognized(what):
    sink = DumpSink()
    assert feed(sink, DUMP.replace("Aborted", what)) == []
    assert sink.text() == ARRANGED


def test_other_fatal_python_errors_stay_in_the_stream():
    sink = DumpSink()
    text = "Fatal Python error: init_import_site: Failed to import the site module\n"
    assert feed(sink, text) == [text.encode()]


def test_c_stack_comes_last():
    c = 'Current thread\'s C stack trace (most recent call first):\n  Binary file "/usr/lib/libc.so.6", at raise+0x1\n'
    sink = DumpSink()
    feed(sink, DUMP + c)
    assert sink.text() == f"{ARRANGED}\n\n{c.rstrip()}"


def test_long_dump_keeps_main_thread_and_counts_omitted_lines():
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
def test_bounded_text_is_limited_in_lines_and_characters(text, times):
    text_shown = bounded(f"{text}\n" * times)
    lines = text_shown.splitlines()
    assert len(lines) <= MOST_LINES + 1
    assert len(text_shown) <= MOST_CHARACTERS + 100


def test_dump_can_be_read_while_it_grows():
    """Processes crash one after another while the agent reads the dump."""
    sink = DumpSink()
    head = "Thread 0x1 (most recent call first):"
    fed = threading.Event()

    def feed_repeatedly():
        while not fed.is_set():
            feed(sink, f"Fatal Python error: Aborted\n{head}\n")

    feed(sink, f"Fatal Python error: Aborted\n{head}\n")
    thread = threading.Thread(target=feed_repeatedly)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the threads switch at any point
    thread.start()
    try:
        assert all(sink.text().startswith(head) for _ in range(5000))
    finally:
        fed.set()
        sys.setswitchinterval(before)
        thread.join()


@given(st.binary(max_size=300))
def test_any_bytes_after_a_dump_are_accepted(data):
    sink = DumpSink()
    for line in (DUMP.encode() + data).splitlines(keepends=True):
        sink.take(line)
    assert sink.text().splitlines()[0].startswith(("Current thread", "Thread"))


def test_abort_kills_a_stopped_process_without_core_dump(spawn, pipe, lines_of):
    process = spawn(f"import os, time; os.write({pipe[1]}, b'ready\\n'); time.sleep(600)")
    lines_of(pipe[0])
    os.kill(process.pid, signal.SIGSTOP)
    abort(process.pid)
    _, status = os.waitpid(process.pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
    process.returncode = -signal.SIGABRT


@pytest.mark.integration
def test_py_spy_failure_is_explained(spy):
    text, why = pyspy_dump(77, spy('echo "Error: Permission Denied" >&2; exit 1'), LONG)
    assert (text, why) == ("", "py-spy exited with 1 and printed: Error: Permission Denied")
    assert pyspy_dump(77, {"PATH": "/nowhere"}, LONG) == (
        "",
        "py-spy, which could read the stacks from outside, is not installed",
    )


@pytest.mark.integration
def test_py_spy_output_is_bounded(spy):
    text, why = pyspy_dump(77, spy("exec yes"), LONG)
    assert (text, why) == ("", "py-spy exited with 1 and printed: y")


@pytest.mark.integration
def test_hanging_py_spy_is_killed(spy, until, running, tmp_path, monkeypatch):
    spoken, wait = tmp_path / "spoken", subprocess.Popen.wait

    def wait_until_spoken(process, timeout):
        until(spoken.exists, "output from py-spy")
        return wait(process, min(timeout, 0.5))

    monkeypatch.setattr(subprocess.Popen, "wait", wait_until_spoken)
    text, why = pyspy_dump(77, spy(f"echo $$; : > {spoken}; exec 1>&- 2>&-; sleep 600 & sleep 600"), LONG)
    assert text == ""
    assert f"did not answer within {LONG:g} s" in why
    pid = int(why.rpartition(" ")[2])
    until(lambda: not running(pid), "the end of py-spy")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes")
def test_aborting_a_missing_process_raises_nothing():
    abort(2**22 + 1)

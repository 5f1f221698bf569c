"""Sinks with real files and pipes."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import threading

import pytest

from elastic_core.workers.channel import TAIL_BYTES, TAIL_LINES, ConsoleSink, FileSink, TailSink


def test_file_sink_appends(tmp_path, capfd):
    for text in (b"one", b"two"):
        sink = FileSink(tmp_path / "log")
        assert sink.write(text) == b""
        sink.close()
        sink.close()
    assert (tmp_path / "log").read_bytes() == b"onetwo"
    assert capfd.readouterr().err == ""


def test_closed_file_sink_returns_all_data(tmp_path):
    sink = FileSink(tmp_path / "log")
    sink.close()
    assert sink.write(b"late") == b"late"


def test_console_on_a_full_disk_keeps_later_output(tmp_path, capfd):
    console = os.open("/dev/full", os.O_WRONLY)
    sink = ConsoleSink(console)
    for _ in range(2):
        sink.write(b"lost\n")
    assert capfd.readouterr().err.count("output lost") == 1
    with open(tmp_path / "log", "wb") as file:  # there is space again
        os.dup2(file.fileno(), console)
    sink.write(b"kept\n")
    os.close(console)
    assert (tmp_path / "log").read_bytes() == b"kept\n"


FULL_DISK = """
import os, sys
from pathlib import Path
from elastic_core import log
from elastic_core.workers.channel import FileSink
log.configure(level="warning")
sink = FileSink(Path(sys.argv[1]) / "log")
text = os.urandom(200_000)
rest = sink.write(text)
kept = (Path(sys.argv[1]) / "log").read_bytes()
assert 0 < len(kept) < len(text), len(kept)
assert kept + rest == text
assert sink.write(b"more") == b"more"
"""


@pytest.mark.integration
def test_disk_that_fills_up_returns_unwritten_data(tmp_path):
    mount = 'mount -t tmpfs -o size=64k none "$1" || exit 77; exec "$2" -c "$3" "$1"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, FULL_DISK]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("No space left on device") == 1


def test_slow_console_receives_all_output(pipe):
    reader, writer = pipe
    os.set_blocking(writer, False)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    text = os.urandom(300_000)
    received = []

    def read():
        while chunk := os.read(reader, 65536):
            received.append(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    ConsoleSink(writer).write(text)
    os.close(writer)
    thread.join()
    assert b"".join(received) == text


def test_slow_console_with_a_high_descriptor_is_supported(pipe):
    """select cannot wait for such a descriptor."""
    reader, writer = pipe
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1100:
        pytest.skip("the limit of open files is too low")
    high = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, 1050)
    os.set_blocking(high, False)
    filled = threading.Event()

    def read():
        filled.wait()
        while os.read(reader, 65536):
            pass

    thread = threading.Thread(target=read)
    thread.start()
    try:
        while True:
            os.write(high, b"x" * 4096)
    except BlockingIOError:
        filled.set()
    ConsoleSink(high).write(b"x" * 200_000)
    os.close(high)
    os.close(writer)
    thread.join()


def test_console_without_reader_raises_nothing(pipe):
    reader, writer = pipe
    os.close(reader)
    sink = ConsoleSink(writer)
    sink.write(b"not")
    sink.write(b"read")


def test_tail_is_limited_in_lines_and_bytes():
    tail = TailSink()
    for number in range(TAIL_LINES + 5):
        tail.write_line(b"line %d\n" % number)
    assert tail.lines() == tuple(f"line {number}" for number in range(5, TAIL_LINES + 5))
    tail.write_line(b"x" * TAIL_BYTES + b"end")
    assert len(tail.lines()[-1]) <= TAIL_BYTES // TAIL_LINES + 1
    assert tail.lines()[-1].endswith("end")


def test_tail_strips_line_ends_and_accepts_any_bytes():
    tail = TailSink()
    for line in (b"\n", b"  \r\n", b"", b"a\r\n", b" b\r", b"\xff\n"):
        tail.write_line(line)
    assert tail.lines() == ("a", " b", "�")

"""The output pump: real pipes in, lines out."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from elastic_core.workers.channel import Channel, ConsoleSink, TerminalLine
from elastic_core.workers.output import OutputPump
from elastic_core.workers.process import wait_readable
from elastic_core.workers.streams import StreamPlan

PATIENCE = 30.0


def finish(pump, patience=PATIENCE):
    pump.end()
    wait_readable(pump.done, patience)
    return pump.finish()


@pytest.fixture
def pump(pipe, make_pipe):
    """A function that starts a pump from `count` new pipes to the console; returns (pump, write ends, channels)."""

    def pump(count, console=pipe[1], **plan):
        sink = ConsoleSink(console)
        channels, writers = {}, []
        for number in range(count):
            reader, writer = make_pipe()
            made = {"captured": True, "keeps_tail": True, "prefix": b"[%d]:" % number, **plan}
            channels[reader] = Channel(StreamPlan(**made), sink, None, TerminalLine())
            writers.append(writer)
        made = OutputPump(channels)
        made.start()
        return made, writers, list(channels.values())

    return pump


def drain(fd, into):
    def read():
        while chunk := os.read(fd, 65536):
            into.append(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_lines_from_eight_writers_stay_whole(pump, pipe):
    """Every writer splits its lines at odd places; the console is a real pipe."""
    received = []
    thread = drain(pipe[0], received)
    made, writers, _ = pump(8)

    def write(number, fd):
        text = b"".join(b"writer %d line %d %s\n" % (number, line, b"x" * (line % 50)) for line in range(2000))
        step = 37 + number
        for start in range(0, len(text), step):
            os.write(fd, text[start : start + step])
        os.close(fd)

    threads = [threading.Thread(target=write, args=pair) for pair in enumerate(writers)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert finish(made)
    os.close(pipe[1])
    thread.join()
    lines = b"".join(received).splitlines()
    for number in range(8):
        own = [line for line in lines if line.startswith(b"[%d]:" % number)]
        assert own == [b"[%d]:writer %d line %d %s" % (number, number, n, b"x" * (n % 50)) for n in range(2000)]
    assert len(lines) == 16_000


def test_unfinished_line_is_shown_after_a_pause(pump, pipe, lines_of):
    made, (writer,), _ = pump(1, prefix=b"")
    os.write(writer, b"your name? ")
    assert os.read(pipe[0], 100) == b"your name? "
    os.write(writer, b"me\n")
    assert lines_of(pipe[0]) == ["me"]
    os.close(writer)
    assert finish(made)


def test_stream_held_open_is_abandoned_at_the_end(pump, pipe):
    made, writers, channels = pump(2)
    os.write(writers[0], b"last line")
    os.write(writers[1], b"whole\n")
    os.close(writers[1])
    assert finish(made)
    assert channels[0].tail() == ("last line",)
    assert channels[1].tail() == ("whole",)


@pytest.mark.integration
def test_daemon_that_keeps_writing_is_abandoned(pump, pipe):
    """The pump delivers the content of the pipe but does not wait for a daemon that a worker left behind."""
    received = []
    reading = drain(pipe[0], received)
    made, (writer,), _ = pump(1)
    os.write(writer, b"the worker's last line\n")
    process = subprocess.Popen(["yes"], stdout=writer)
    os.close(writer)
    try:
        assert finish(made)
    finally:
        process.kill()
        process.wait()
    os.close(pipe[1])
    reading.join()
    assert b"[0]:the worker's last line\n" in b"".join(received)


def test_unstarted_pump_delivers_output(pipe):
    reader, writer = os.pipe()
    made = OutputPump({reader: Channel(StreamPlan(captured=True), ConsoleSink(pipe[1]), None, TerminalLine())})
    os.write(writer, b"hello\n")
    os.close(writer)
    made.end()
    assert made.finish()
    assert os.read(pipe[0], 100) == b"hello\n"


def test_blocked_console_does_not_block_the_agent(pump, pipe, helpers_gone):
    os.set_blocking(pipe[1], True)
    made, (writer,), channels = pump(1)
    for _ in range(12):
        os.write(writer, b"y" * 10_000 + b"\n")  # the console's pipe holds 64 KiB and has no reader
    os.close(writer)
    assert not finish(made, 0.2)
    assert channels[0].tail()
    received = []
    reading = drain(pipe[0], received)
    while b"".join(received).count(b"y") < 120_000:
        assert reading.is_alive()
        reading.join(0.01)
    helpers_gone()  # before its pipe is closed
    os.close(pipe[1])
    reading.join()


class BrokenConsole:
    """A console that raises."""

    def write(self, data):
        raise ValueError("no such color")


def test_console_error_is_reported_once_and_blocks_no_worker(capfd):
    """The worker writes much more than its pipe holds, and the tail of its output is kept."""
    reader, writer = os.pipe()
    channel = Channel(StreamPlan(captured=True, keeps_tail=True), BrokenConsole(), None, TerminalLine())
    made = OutputPump({reader: channel})
    made.start()
    for number in range(5000):
        os.write(writer, b"line %d of some length to fill the pipe many times over\n" % number)
    os.close(writer)
    assert finish(made)
    assert channel.tail()[-1].startswith("line 4999 ")
    assert capfd.readouterr().err.count("the output could not be moved: ValueError: no such color") == 1


def test_pump_without_streams_finishes():
    made = OutputPump({})
    made.start()
    assert finish(made)


def test_catch_up_waits_for_written_output(pump, pipe):
    reading = drain(pipe[0], [])
    moving, writers, (channel, _) = pump(2)
    for number in range(200):
        os.write(writers[0], b"%d\n" % number)
        assert moving.catch_up(PATIENCE)
        assert channel.tail()[-1] == str(number)
    for writer in writers:
        os.close(writer)  # otherwise `cat` would keep the console open
    finish(moving)
    assert moving.catch_up(0.0)  # immediately: the pump has ended
    os.close(pipe[1])
    reading.join(PATIENCE)


def test_catch_up_gives_up_after_its_timeout(pump, pipe, until):
    moving, (writer,), _ = pump(1, prefix=b"")
    writing = threading.Thread(target=os.write, args=(writer, b"x\n" * 500_000))  # more than the console can hold
    writing.start()
    until(lambda: moving.moved > 65536, "more than a pipe holds")
    assert not moving.catch_up(0.05)
    assert moving.busy
    reading = drain(pipe[0], [])
    writing.join(PATIENCE)
    assert moving.catch_up(PATIENCE)
    os.close(writer)  # otherwise `cat` would keep the console open
    finish(moving)
    os.close(pipe[1])
    reading.join(PATIENCE)

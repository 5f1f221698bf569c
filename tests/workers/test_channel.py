"""A stream is cut into lines without loss or mixing, whatever its chunks."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.workers.channel import Channel, FileSink, TerminalLine
from elastic_core.workers.streams import StreamPlan


class Console:
    """Records the writes."""

    def __init__(self):
        self.writes = []

    def write(self, data):
        if data:
            self.writes.append(bytes(data))

    @property
    def text(self):
        return b"".join(self.writes)


def make(filtered=None, **plan):
    console = Console()
    plan = StreamPlan(**{"captured": True, "keeps_tail": True, **plan})
    return Channel(plan, console, filtered, TerminalLine()), console


@pytest.fixture
def terminal():
    """The channels of two workers that share a terminal, and the console."""
    console, screen = Console(), TerminalLine()
    plans = [StreamPlan(captured=True, prefix=b"[%d] " % rank, terminal=True) for rank in range(2)]
    return [Channel(plan, console, None, screen) for plan in plans], console


def rendered(text):
    """The rows a terminal shows after this text; it knows carriage return and erase-to-end-of-line."""
    rows, column = [""], 0
    for part in re.findall(rb"\x1b\[K|.|\n", text):
        if part == b"\x1b[K":
            rows[-1] = rows[-1][:column]
        elif part == b"\r":
            column = 0
        elif part == b"\n":
            rows.append("")
            column = 0
        else:
            rows[-1] = rows[-1][:column] + part.decode() + rows[-1][column + 1 :]
            column += 1
    return rows


def test_output_without_prefix_is_passed_unchanged():
    channel, console = make()
    channel.feed(b"a\r\nb\rc\n\xff\x00d")
    channel.close()
    assert console.text == b"a\r\nb\rc\n\xff\x00d"


def test_hidden_stream_is_written_to_its_file_only(tmp_path):
    channel, console = make(console=False, file=tmp_path / "f")
    channel.feed(b"half")
    assert not channel.unfinished
    channel.feed(b" whole\n")
    channel.close()
    assert console.text == b""
    assert (tmp_path / "f").read_bytes() == b"half whole\n"


def test_carriage_returns_separate_prefixed_lines():
    channel, console = make(prefix=b">")
    channel.feed(b"\r 10%")
    channel.feed(b"\r 20%\r")
    channel.feed(b"\r\n")
    channel.feed(b"done\r")
    channel.feed(b"\nend\n")
    channel.close()
    assert console.text == b">\r> 10%\r> 20%\r>\r\n>done\r\n>end\n"


def test_endless_line_is_passed_on_in_pieces(tmp_path):
    text = os.urandom(3 * 1024 * 1024).replace(b"\n", b"x").replace(b"\r", b"x")
    channel, console = make(file=tmp_path / "f")
    for start in range(0, len(text), 65536):
        channel.feed(text[start : start + 65536])
    assert console.writes
    channel.close()
    assert console.text == text
    assert (tmp_path / "f").read_bytes() == text
    assert channel.tail()


def test_line_of_a_mebibyte_stays_whole(tmp_path):
    channel, console = make(FileSink(tmp_path / "filtered"), prefix=b"[0]:", filters=(b"loss",))
    text = b"loss" + b"x" * (1024 * 1024 - 4)
    for start in range(0, len(text), 65536):
        channel.feed(text[start : start + 65536])
    channel.feed(b"\n")
    channel.close()
    assert console.text == b"[0]:" + text + b"\n"
    assert (tmp_path / "filtered").read_bytes() == text + b"\n"


def test_tail_includes_unfinished_last_line():
    channel, _ = make()
    channel.feed(b"one\n\n  two\nthr")
    channel.feed(b"ee")
    assert channel.tail() == ("one", "  two")
    channel.close()
    assert channel.tail() == ("one", "  two", "three")


def test_tail_is_kept_only_on_request():
    channel, _ = make(keeps_tail=False)
    channel.feed(b"one\n")
    channel.close()
    assert channel.tail() == ()


def test_file_server_that_reports_a_lost_write_at_the_end_is_logged(tmp_path, capfd):
    """Even then, the descriptor is closed. The agent once wrote output to the next file that it opened."""
    channel, _ = make(file=tmp_path / "f")
    channel.feed(b"one\n")
    descriptor = next(fd for fd in map(int, os.listdir("/proc/self/fd")) if target(fd) == str(tmp_path / "f"))
    os.close(descriptor)  # so that the agent's own close fails
    channel.close()
    channel.close()
    assert capfd.readouterr().err.count("output lost") == 1


def target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # the descriptor of the listing itself
        return ""


def test_filters_write_whole_matching_lines_to_a_shared_file(tmp_path):
    filtered = FileSink(tmp_path / "filtered")
    first, _ = make(filtered, filters=(b"loss", b"acc"))
    second, _ = make(filtered, filters=(b"loss", b"acc"), console=False)
    first.feed(b"step 1 lo")
    second.feed(b"nothing\nloss of b")
    first.feed(b"ss 0.5\nno\nacc")
    first.close()
    second.close()
    assert (tmp_path / "filtered").read_bytes() == b"step 1 loss 0.5\nacc\nloss of b\n"


@pytest.mark.parametrize("prefix", [b"", b"[0]:"])
def test_full_device_falls_back_to_the_console(tmp_path, prefix, capfd):
    (tmp_path / "f").symlink_to("/dev/full")
    channel, console = make(console=bool(prefix), prefix=prefix, file=tmp_path / "f")
    channel.feed(b"one\ntw")
    channel.feed(b"o\n")
    channel.feed(b"three")
    channel.close()
    assert capfd.readouterr().err.count("output lost") == 1
    assert console.text.replace(prefix, b"").rstrip() == b"one\ntwo\nthree"


def test_fallback_does_not_repeat_text_already_in_the_file(tmp_path):
    """A FIFO stands in for a device that fills up in the middle of a line."""
    os.mkfifo(tmp_path / "f")
    reader = os.open(tmp_path / "f", os.O_RDONLY | os.O_NONBLOCK)
    channel, console = make(console=False, file=tmp_path / "f")
    channel.feed(b"one\ntw")
    channel.feed(b"o, th")
    taken = os.read(reader, 100)
    os.close(reader)  # from here on, writing fails
    channel.feed(b"ree\nfour\nfi")
    assert console.writes == [b"ree\nfour\n"]
    channel.feed(b"ve\n")
    channel.close()
    assert taken + console.text == b"one\ntwo, three\nfour\nfive\n"


pieces = st.lists(st.text(alphabet="ab\r\n", max_size=8).map(str.encode), max_size=12)


@given(pieces, st.data())
def test_output_is_neither_lost_nor_duplicated(chunks, data):
    channel, console = make()
    for chunk in chunks:
        channel.feed(chunk)
        if channel.unfinished and data.draw(st.booleans()):
            channel.show_unfinished()
    channel.close()
    assert console.text == b"".join(chunks)


@given(pieces)
def test_lines_do_not_depend_on_chunk_boundaries(chunks):
    text = b"".join(chunks)
    apart, one = make(prefix=b"|"), make(prefix=b"|")
    for chunk in chunks:
        apart[0].feed(chunk)
    one[0].feed(text)
    for channel, _ in (apart, one):
        channel.close()
    assert apart[1].text == one[1].text
    assert apart[0].tail() == one[0].tail()
    assert [line for line in apart[1].text.splitlines(keepends=True) if not line.startswith(b"|")] == []


def test_unfinished_line_on_a_terminal_is_prefixed_once(terminal):
    (first, _), console = terminal
    first.feed(b"continue? ")
    assert first.unfinished
    first.show_unfinished()
    first.feed(b"[y/n] ")
    first.show_unfinished()
    first.feed(b"y\ndone\n")
    assert rendered(console.text) == ["[0] continue? [y/n] y", "[0] done", ""]


@pytest.mark.parametrize(
    ("begins", "rest", "rows"),
    [
        (b"loading", b" done\nnext\n", ["[0] loading", "[1] step 1", "[0]  done", "[0] next", ""]),
        (b"loaded", b"\nnext\n", ["[0] loaded", "[1] step 1", "[0] next", ""]),
        (b"\rfatal: cannot open dataset", b"", ["[1] step 1", "[0] fatal: cannot open dataset", ""]),
        (b"written on Windows\r", b"\n", ["[1] step 1", "[0] written on Windows", ""]),
    ],
    ids=["the rest follows", "only the line end follows", "progress bar before the end", "the line end is split"],
)
def test_line_interrupted_by_another_worker_stays_whole(terminal, begins, rest, rows):
    (first, second), console = terminal
    first.feed(begins)
    first.show_unfinished()
    second.feed(b"step 1\n")
    first.feed(rest)
    first.close()
    assert rendered(console.text) == rows


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([b"a", b"bc", b"\n", b"d\n\ne"]), st.booleans())))
def test_terminal_shows_all_text_of_two_workers_once(pieces):
    console, screen = Console(), TerminalLine()
    plans = [StreamPlan(captured=True, prefix=b"[%d] " % rank, terminal=True) for rank in range(2)]
    channels = [Channel(plan, console, None, screen) for plan in plans]
    for rank, text, pauses in pieces:
        channels[rank].feed(text)
        if pauses and channels[rank].unfinished:
            channels[rank].show_unfinished()
    for channel in channels:
        channel.close()
    for rank in range(2):
        written = b"".join(text for who, text, _ in pieces if who == rank).replace(b"\n", b"").decode()
        assert "".join(row[4:] for row in rendered(console.text) if row.startswith(f"[{rank}] ")) == written


def test_progress_bars_of_two_workers_share_one_line(terminal):
    channels, console = terminal
    for percent in (10, 20, 100):
        for channel in channels:
            channel.feed(b"\r%d%% %s" % (percent, b"#" * (12 - percent // 10)))
            channel.show_unfinished()
    assert rendered(console.text) == ["[1] 100% ##"]
    channels[1].feed(b"\n")
    channels[0].feed(b"\nsaved\n")
    assert rendered(console.text) == ["[1] 100% ##", "[0] 100% ##", "[0] saved", ""]


def test_progress_bar_is_shown_without_a_pause(terminal):
    (first, _), console = terminal
    first.feed(b"\r10%")
    first.feed(b"\r20%")
    assert rendered(console.text) == ["[0] 20%"]


def test_line_replaces_another_workers_progress_bar(terminal):
    (first, second), console = terminal
    first.feed(b"\r10% ####################")
    first.show_unfinished()
    second.feed(b"step 1\n")
    first.feed(b"\r20% ####################")
    first.show_unfinished()
    assert rendered(console.text) == ["[1] step 1", "[0] 20% ####################"]


def test_unfinished_last_line_is_ended_on_a_terminal(terminal):
    (first, second), console = terminal
    first.feed(b"killed here")
    first.show_unfinished()
    first.close()
    second.feed(b"step 1\n")
    assert rendered(console.text) == ["[0] killed here", "[1] step 1", ""]


def test_cursor_movements_are_removed_on_a_shared_terminal(terminal):
    (first, _), console = terminal
    first.feed(b"\x1b[31mred\x1b[0m\n\x1b[A\x1b[2Jagain\x1b[10;4H\n")
    assert console.text == b"[0] \x1b[31mred\x1b[0m\n[0] again\n"

"""The source `file`."""

from __future__ import annotations

import os
import time

import pytest
from elastic_notices.watched_file import decode, read, read_settled
from elastic_testing import FakeClock, NoticeContract

from elastic_core.plugin import ConfigurationError, Notice

NOW = 1_700_000_000.0
EXISTS = "the notice file exists"


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("", Notice(EXISTS)),
        ("\n \n", Notice(EXISTS)),
        ("rack 7\nis serviced.\n", Notice("rack 7 is serviced")),
        ("1700000060", Notice(EXISTS, NOW + 60)),
        ("1700000060.5\nrack 7\n", Notice("rack 7", NOW + 60.5)),
        ("2023-11-14T22:14:20Z\n\nrack 7", Notice("rack 7", NOW + 60)),
        ("2023-11-14T22:14:20\nrack 7", Notice("rack 7", NOW + 60)),
        ("2023-11-14T23:14:20+01:00\nrack 7", Notice("rack 7", NOW + 60)),
        ("2023-11-14T22:13:10Z\nrack 7", Notice("rack 7")),  # ten seconds ago
        ("\x1b[31mred", Notice("\\x1b[31mred")),
        ("x" * 5000, Notice("x" * 200)),
    ],
)
def test_content_is_time_and_reason(text, notice):
    assert decode(text, NOW) == notice


@pytest.mark.parametrize("time", ["5", "1e300", "-1", "2010-01-01", "9999-12-31T00:00:00Z"])
def test_implausible_time_is_a_reason_to_leave_now(time):
    """The file's existence is the notice."""
    assert decode(time, NOW) == Notice(time)


@pytest.mark.parametrize("first", ["nan", "inf", "2023-99-99"])
def test_line_that_is_no_time_is_a_reason(first):
    assert decode(first, NOW) == Notice(first)


class TestFile(NoticeContract):
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "leave"

    @pytest.fixture
    def source(self, start, path):
        return lambda pause: start("file", pause, notice_file=str(path))

    @pytest.fixture
    def announce(self, path):
        return lambda: path.write_text("rack 7 is serviced.\n")

    @pytest.fixture
    def withdraw(self, path):
        return path.unlink


def test_file_is_read_again_while_it_is_being_written(tmp_path):
    path = tmp_path / "leave"
    path.touch()
    os.utime(path, (100.0, 100.0))
    clock = FakeClock(epoch=100.5)
    assert read_settled(str(path), lambda seconds: path.write_text("rack 7"), clock).text == "rack 7"
    assert read_settled(str(path), lambda seconds: path.unlink(), clock).text == "rack 7"  # not as new any more
    os.utime(path, (100.0, 100.0))
    assert read_settled(str(path), lambda seconds: path.unlink(), clock) is None


def test_content_that_is_not_a_notice_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_text("x" * 100_000)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("pipe", "long", "."):
        with pytest.raises(OSError, match=r"regular|longer"):
            read(str(tmp_path / name))
    assert len(os.listdir("/proc/self/fd")) == before  # a source reads the file at every poll
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="utf-8"):
        read(str(tmp_path / "binary"))
    assert read(str(tmp_path / "missing" / "file")) is None


def test_unchanged_file_is_one_notice(start, tmp_path):
    path = tmp_path / "leave"
    path.write_text(f"{time.time() + 500}\nrack 7")
    os.utime(path, (100.0, 100.0))
    left = iter([True] * 5)
    notices = list(start("file", lambda seconds: next(left, False), notice_file=str(path)))
    assert [notice.reason for notice in notices] == ["rack 7"]


def test_source_without_its_file_is_a_configuration_error(start):
    with pytest.raises(ConfigurationError, match="requires --notice-file"):
        start("file")

"""`record` and the error file, in torch's format."""

from __future__ import annotations

import json
import os
import sys

import pytest

from elastic_core.error_file import VARIABLE, ErrorHandler, write
from elastic_core.errors import ChildFailedError, ProcessFailure
from elastic_core.multiprocessing import record
from elastic_core.workers.failure import error_message, read_error_file


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "error.json"))
    return tmp_path / "error.json"


@record
def main(what):
    """Says what it is."""
    if what == "raise":
        raise ValueError("no samples")
    if isinstance(what, BaseException):
        raise what
    return what


def test_return_value_is_passed_on(path):
    assert (main(3), main.__doc__, path.exists()) == (3, "Says what it is.", False)


def test_exception_is_written_and_raised(path):
    with pytest.raises(ValueError, match="no samples"):
        main("raise")
    content = json.loads(path.read_text())
    assert content["message"]["message"] == "ValueError: no samples"
    assert int(content["message"]["extraInfo"]["timestamp"]) > 10**9
    said = error_message(read_error_file(path))
    assert said.startswith("Traceback") and said.endswith("ValueError: no samples")


def test_huge_message_is_written_without_its_middle(path):
    with pytest.raises(ValueError, match="x"):
        main(ValueError("\U0001f600x" * 1_000_000))
    assert path.stat().st_size < 1 << 20
    message = json.loads(path.read_text())["message"]
    assert message["message"].startswith("ValueError: \U0001f600x")
    assert message["extraInfo"]["py_callstack"].startswith("Traceback")


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_exception_without_text_is_recorded_and_raised(path):
    with pytest.raises(Unprintable):
        main(Unprintable())
    assert "Unprintable" in json.loads(path.read_text())["message"]["message"]


@pytest.mark.parametrize("left", [SystemExit(4), SystemExit(None), KeyboardInterrupt()])
def test_exits_and_interrupts_are_passed_on(left, path):
    with pytest.raises(type(left)) as caught:
        main(left)
    assert caught.value is left
    assert not path.exists()


def test_exit_code_0_is_a_return(path):
    assert main(SystemExit(0)) is None


def test_exception_is_raised_without_a_file(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match="no samples"):
        main("raise")


@pytest.mark.parametrize("content", [{"message": {"message": "root"}}, {"message": "root"}])
def test_inner_launch_error_is_copied(content, path, tmp_path):
    inner = tmp_path / "inner.json"
    inner.write_text(json.dumps(content))
    with pytest.raises(ChildFailedError):
        main(ChildFailedError("inner", {0: ProcessFailure(0, 1, 7, str(inner))}))
    written = json.loads(path.read_text())
    noted = written["message"].pop("errorCode") if isinstance(content["message"], dict) else None
    assert written == content
    assert noted == (7 if isinstance(content["message"], dict) else None)


@pytest.mark.parametrize("failures", [{}, {0: ProcessFailure(0, 1, 7)}, {0: ProcessFailure(0, 1, 7, "/no/such/file")}])
def test_inner_launch_without_file_raises(failures, path):
    with pytest.raises(ChildFailedError):
        main(ChildFailedError("inner", failures))
    assert not path.exists()


def test_custom_handler_records_the_exception():
    class Keeping(ErrorHandler):
        def __init__(self):
            self.kept = []

        def initialize(self):
            self.kept.append("initialize")

        def record_exception(self, e):
            self.kept.append(e)

    handler, error = Keeping(), ValueError("no samples")
    with pytest.raises(ValueError, match="no samples"):
        record(main.__wrapped__, handler)(error)
    assert handler.kept == ["initialize", error]


@pytest.mark.parametrize("stderr", [None, object()], ids=["closed", "object without fileno"])
def test_stderr_without_descriptor_is_tolerated(stderr, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stderr)
    ErrorHandler().initialize()


def test_pipe_is_not_written(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    write(str(pipe), {"message": "lost"})  # it would block without a reader
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(str(pipe), {"message": "lost"})
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_invalid_json_does_not_hide_the_error(tmp_path):
    write(str(tmp_path / "error.json"), {"message": object()})
    assert not (tmp_path / "error.json").exists()

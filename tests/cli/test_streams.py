"""The command with streams that are closed, broken or stalled, mostly seen from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from elastic_core import cli

pytestmark = pytest.mark.integration

ELASTIC = [sys.executable, "-m", "elastic_core"]


def outside(*argv, **kwargs):
    return subprocess.run([*ELASTIC, *argv], text=True, timeout=180, **{"capture_output": True, **kwargs})


def test_the_module_is_the_command():
    done = outside("--version")
    assert (done.returncode, done.stdout) == (0, f"elastic-core {version('elastic-core')}\n")
    assert outside("walk").returncode == 2


@pytest.fixture
def broken_stream():
    """A text stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    yield stream
    stream.close()


def test_a_broken_stdout_is_no_error(broken_stream, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", broken_stream)
    assert cli.main(["plugins"]) == 0
    assert capsys.readouterr().err == ""


def test_an_error_that_nobody_hears_has_its_code(broken_stream, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", broken_stream)
    assert cli.main(["walk"]) == 2
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["walk"]) == 2
    assert capsys.readouterr().out == ""


def test_a_reader_who_has_seen_enough_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = outside("plugins", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "raise ValueError('x')"])
def test_a_broken_stderr_does_not_change_the_exit_code(source, script):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = outside("run", script(source), capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    finally:
        os.close(writer)
    assert done.returncode == 1


def test_a_stalled_stderr_does_not_hold_the_job_up(script):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * 4096)
        os.set_blocking(writer, True)
        done = outside("run", script("print('done')"), capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_closed_stderr_does_not_change_the_exit_code_and_nothing_goes_to_stdout(script):
    path = script("import sys; sys.exit(3)")
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *ELASTIC, "run", path]
    done = subprocess.run(command, text=True, timeout=180, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1, "")


def test_closed_standard_streams_do_not_take_the_workers_output(tmp_path):
    """Without them, the first pipes and files would get their numbers."""
    flags = "-r 3 --log-dir=logs --rdzv-id=job --nproc-per-node=2"
    command = f"exec {sys.executable} -m elastic_core run {flags} --no-python echo x"
    done = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], cwd=tmp_path, timeout=180, check=False)
    assert done.returncode == 0
    folder = tmp_path / "logs" / "job" / "round-1"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "rank-0.out": "x\n",
        "rank-0.err": "",
        "rank-1.out": "x\n",
        "rank-1.err": "",
    }

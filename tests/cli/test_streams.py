"""The command with closed, broken or stalled streams, mostly in a separate process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

pytestmark = pytest.mark.integration

ELASTIC = [sys.executable, "-m", "elastic_core"]


def run_elastic(*argv, **kwargs):
    return subprocess.run([*ELASTIC, *argv], text=True, timeout=180, **{"capture_output": True, **kwargs})


def test_module_runs_as_a_command():
    done = run_elastic("--version")
    assert (done.returncode, done.stdout) == (0, f"elastic-core {version('elastic-core')}\n")
    assert run_elastic("walk").returncode == 2


def test_closed_stdout_reader_exits_0():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_elastic("plugins", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["plugins", "--version", "run --help"])
def test_stdout_on_full_disk_is_reported(command):
    with open("/dev/full", "w") as full:
        done = run_elastic(*command.split(), capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "raise ValueError('x')"])
def test_broken_stderr_keeps_the_exit_code(source, script):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_elastic("run", script(source), capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    finally:
        os.close(writer)
    assert done.returncode == 1


@pytest.mark.parametrize("code", [0, 1])
def test_stalled_stderr_does_not_block_the_job(code, script):
    path = script(f"print('done'); raise SystemExit({code})")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"." * 4096)
        os.set_blocking(writer, True)
        done = run_elastic("run", path, capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    finally:
        os.close(reader)
        os.close(writer)
    assert (done.returncode, done.stdout) == (code, "done\n")


def test_closed_stderr_keeps_exit_code_and_empty_stdout(script):
    path = script("import sys; sys.exit(3)")
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *ELASTIC, "run", path]
    done = subprocess.run(command, text=True, timeout=180, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (1, "")


def test_closed_standard_streams_keep_worker_output(tmp_path):
    """Otherwise the first pipes and files would get the numbers of the closed streams."""
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

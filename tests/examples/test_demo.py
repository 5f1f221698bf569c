"""The demo kills its workers on any system. The end-to-end tests run it as a whole."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "demo.py"


@pytest.fixture
def demo(monkeypatch):
    spec = importlib.util.spec_from_file_location("digits_demo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def refusing(number):
    def pidfd_open(pid, flags=0):
        raise OSError(number, os.strerror(number))

    return pidfd_open


@pytest.fixture(params=["as it is", "missing", errno.ENOSYS, errno.EPERM])
def system(request, monkeypatch):
    """Systems with and without pidfd_open."""
    if request.param == "missing":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif request.param != "as it is":
        monkeypatch.setattr(os, "pidfd_open", refusing(request.param), raising=False)
    return request.param


def test_worker_is_killed_with_and_without_pidfd(demo, process, system):
    worker = demo.Worker.of(process.pid)
    worker.kill()
    assert process.wait() == -signal.SIGKILL
    worker.kill()
    worker.release()


def test_worker_that_has_exited_is_an_error(demo, process, system):
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        demo.Worker.of(process.pid)


def test_reused_pid_is_not_killed_without_pidfd(demo, process):
    worker = demo.Worker(process.pid, None, start="another time")
    worker.kill()
    assert process.poll() is None

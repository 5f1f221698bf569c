"""Counting devices with a fake torch, which a separate process imports."""

from __future__ import annotations

import io
import os
import re
import select
import subprocess
import sys

import pytest

from elastic_core import log
from elastic_core.devices import count_workers, probe_torch, usable_cpus
from elastic_core.errors import ConfigurationError

pytestmark = pytest.mark.integration

FOUR_GPUS = """
class _Four:
    @staticmethod
    def is_available():
        return True

    @staticmethod
    def device_count():
        print("a driver that talks")
        return 4

class _Absent(_Four):
    @staticmethod
    def is_available():
        return False

accelerator = cuda = _Four
xpu = _Absent
nn = object()
"""


@pytest.fixture
def torch_is(tmp_path, monkeypatch):
    """A function that installs a fake torch for processes started later."""

    def torch_is(source):
        (tmp_path / "torch.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return torch_is


def refuse(kind):
    raise AssertionError(f"asked for {kind}")


def test_usable_cpus_are_at_most_those_of_the_machine():
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)


def test_numbers_and_cpus_need_no_probe():
    assert count_workers(7, refuse) == 7
    assert count_workers("cpu", refuse) == usable_cpus()


@pytest.mark.parametrize(("wanted", "found", "count"), [("gpu", 4, 4), ("xpu", 2, 2), ("auto", 3, 3)])
def test_devices_are_counted(wanted, found, count):
    asked = []
    assert count_workers(wanted, lambda kind: asked.append(kind) or found) == count
    assert asked == [wanted]


def test_auto_without_a_device_counts_cpus():
    assert count_workers("auto", lambda kind: 0) == usable_cpus()


@pytest.mark.parametrize(
    ("wanted", "found", "message"),
    [
        ("gpu", 0, "torch finds no usable 'gpu' device"),
        ("abc", -1, "expected a number, cpu, gpu, auto or a torch device type .* found 'abc'"),
    ],
)
def test_missing_or_unknown_device_type_is_an_error(wanted, found, message):
    with pytest.raises(ConfigurationError, match=message):
        count_workers(wanted, lambda kind: found)


def test_torch_runs_in_a_separate_process(torch_is):
    torch_is(FOUR_GPUS)
    counts = {kind: probe_torch(kind) for kind in ("auto", "gpu", "cuda", "xpu", "nn", "npu")}
    assert counts == {"auto": 4, "gpu": 4, "cuda": 4, "xpu": 0, "nn": -1, "npu": -1}


def test_broken_torch_is_an_error_with_its_message(torch_is):
    torch_is("raise ImportError('libcuda.so.1: cannot open shared object file')")
    with pytest.raises(ConfigurationError) as refused:
        count_workers("gpu")
    assert str(refused.value) == (
        "--nproc-per-node: torch cannot count 'gpu' devices: ImportError: "
        "libcuda.so.1: cannot open shared object file; give a number instead"
    )


def test_auto_without_torch_counts_cpus(tmp_path, monkeypatch):
    hidden = "import sys; sys.path[:] = [path for path in sys.path if 'site-packages' not in path]"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe_torch("auto") == 0
    assert count_workers("auto") == usable_cpus()
    with pytest.raises(ConfigurationError, match="No module named 'torch'"):
        probe_torch("gpu")


def test_auto_counts_gpus_without_accelerator_module(torch_is):
    torch_is(FOUR_GPUS.replace("accelerator = cuda", "cuda"))
    assert count_workers("auto") == 4


@pytest.mark.parametrize(
    "source",
    [
        "raise ImportError('libcuda.so.1: cannot open shared object file')",
        "import no_such_module",
        "import os; os.abort()",
        "class accelerator:\n  def is_available(): raise RuntimeError('driver too old')",
    ],
)
def test_auto_with_broken_torch_is_an_error(torch_is, source):
    """Otherwise a machine with eight GPUs would start a worker for each of its hundreds of CPUs."""
    torch_is(source)
    with pytest.raises(ConfigurationError, match="torch cannot count 'auto' devices"):
        count_workers("auto")


def test_invalid_answer_is_an_error(torch_is):
    torch_is(FOUR_GPUS.replace("return 4", "return None"))
    with pytest.raises(ConfigurationError, match="torch cannot count 'gpu' devices: invalid literal"):
        probe_torch("gpu")


def test_torch_without_answer_is_an_error(torch_is):
    torch_is("import time; time.sleep(600)")
    with pytest.raises(ConfigurationError, match=r"cannot count 'gpu' devices: no answer within 0\.5 s"):
        probe_torch("gpu", timeout=0.5)


def test_wait_for_slow_answer_is_logged(torch_is, tmp_path):
    seen = tmp_path / "seen"

    class Seen(io.StringIO):
        def write(self, text):
            seen.touch()
            return super().write(text)

    output = Seen()
    torch_is(f"{FOUR_GPUS}\nimport os, time\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.05)")
    log.configure("human", "info", output)
    try:
        assert probe_torch("gpu", timeout=60) == 4
    finally:
        log.configure("human", "warning")
    assert re.search(r'still waiting: waiting_for="torch to count its devices" seconds=\d', output.getvalue())


def test_probe_ends_when_its_parent_is_killed(torch_is, tmp_path):
    """The agent may be terminated while the probe imports torch."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    torch_is(f"import os, time; open({str(fifo)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    asking = subprocess.Popen([sys.executable, "-c", "from elastic_core.devices import *; probe_torch('gpu')"])
    with open(fifo) as reader:
        probe = os.pidfd_open(int(reader.read()))
    asking.kill()
    asking.wait()
    try:
        assert select.select([probe], [], [], 30)[0]
    finally:
        os.close(probe)


def test_missing_interpreter_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        probe_torch("gpu")


@pytest.mark.torch
def test_real_torch_answers():
    assert count_workers("auto") >= 1

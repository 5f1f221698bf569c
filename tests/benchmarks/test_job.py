"""A benchmark's job: all of its output is read, and it is terminated before it is killed, so that it can clean up."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from benchmarks.job import Job
from benchmarks.processes import now

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]

LAUNCHER = """
import os, signal, subprocess, sys, time
folder = sys.argv[1]
os.mkdir(folder)

def leave(*_):
    os.rmdir(folder)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave if sys.argv[2] == "obeys" else signal.SIG_IGN)
helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print(helper.pid, flush=True)
time.sleep(600)
"""

BENCHMARK = """
import sys
import benchmarks.job as job_module
from benchmarks.processes import adopt_orphans, now
job_module.STOP_LIMIT_S = float(sys.argv[1])
adopt_orphans()
with job_module.running([sys.executable, "-S", "-c", *sys.argv[2:]]) as job:
    print(job.wait_line(lambda line: True, now() + 30).text.strip())
"""


def run(folder, manner, limit):
    command = [sys.executable, "-c", textwrap.dedent(BENCHMARK), str(limit), textwrap.dedent(LAUNCHER)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(folder), manner], env=environment, capture_output=True, text=True, timeout=180, check=True
    )
    return int(done.stdout)


@pytest.mark.parametrize(("manner", "limit"), [("obeys", 30), ("ignores", 0.2)])
def test_launcher_may_clean_up_before_descendants_are_killed(tmp_path, manner, limit):
    helper = run(tmp_path / "scratch", manner, limit)
    assert (tmp_path / "scratch").exists() == (manner == "ignores")
    assert not os.path.exists(f"/proc/{helper}")


class ReadLate(Job):
    """A job whose output is read only after it has exited."""

    def _read(self):
        self.process.wait()
        time.sleep(0.5)
        super()._read()


def test_last_output_of_an_exited_job_is_read(tmp_path):
    job = ReadLate([sys.executable, "-S", "-c", "print('one'); print('two')"], tmp_path)
    assert job.wait_line(lambda line: line == "two\n", now() + 60).text == "two\n"
    assert job.wait_line(lambda line: True, now() + 60) is None

"""Checks the shell that runs the pages' blocks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from elastic_testing import eventually

KILLED = """
import sys
from pathlib import Path
from blocks import Shell
block = Shell(Path(sys.argv[1])).start("echo $$; exec sleep 600")
block.says("\\n")
print(block.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.integration
def test_killed_test_run_leaves_no_programs_behind(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parent, **pipes) as run:
        program = psutil.Process(int(run.stdout.readline()))
        try:
            assert not has_ended(program)
            run.send_signal(signal.SIGKILL)
            eventually(lambda: has_ended(program))
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                program.kill()


def has_ended(program):
    """Whether the program has ended; in a container, possibly no process reaps it."""
    try:
        return program.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

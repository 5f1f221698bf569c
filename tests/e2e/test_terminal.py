"""The output of a job on a terminal, a real pseudo-terminal of the kernel."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys

import pytest

from elastic_core.clock import SystemClock

pytestmark = pytest.mark.integration

LIMIT_S = 60.0
COLOR = re.compile(r"\x1b\[[0-9;]*[mK]")


class Terminal:
    """A program in the foreground of a separate terminal."""

    def __init__(self, elastic, *command):
        self._us, its = os.openpty()
        environment = {**os.environ, "TERM": "xterm", "TZ": "Asia/Kathmandu", "ELASTICTEST_MARK": elastic.mark}
        environment.pop("NO_COLOR", None)
        setsid = ["setsid", "--ctty", "--wait", sys.executable, "-m", "elastic_core", "run"]
        self.process = subprocess.Popen(
            [*setsid, *command], cwd=elastic.cwd, env=environment, stdin=its, stdout=its, stderr=its
        )
        elastic.started.append(self.process)
        os.close(its)
        self.raw = b""

    def until(self, done):
        """Read until `done` of the text so far is true. Fails if the program ends before, or no output comes."""
        clock = SystemClock()
        deadline = clock.now() + LIMIT_S
        while not done(self.text):
            left = max(deadline - clock.now(), 0.0)
            assert select.select([self._us], [], [], left)[0], self.text
            assert self._more(), self.text

    def end(self):
        """Read to the end. Returns the exit code."""
        while self._more():
            pass
        os.close(self._us)
        return self.process.wait(LIMIT_S)

    def press(self, key):
        os.write(self._us, key)

    def _more(self):
        with contextlib.suppress(OSError):  # EIO: no process has the terminal open
            data = os.read(self._us, 4096)
            self.raw += data
            return bool(data)
        return False

    @property
    def text(self):
        return COLOR.sub("", self.raw.decode()).replace("\r\n", "\n")


@pytest.fixture
def terminal(elastic):
    return lambda *command: Terminal(elastic, *command)


TALK = """
import os, sys, time
print("step 1")
print("warning", file=sys.stderr)
"""


def test_each_line_of_several_workers_has_its_rank(elastic, terminal):
    shown = terminal("--nproc-per-node=2", elastic.script("talk.py", TALK))
    assert shown.end() == 0
    lines = shown.text.splitlines()
    workers = ["[rank0] step 1", "[rank0] warning", "[rank1] step 1", "[rank1] warning"]
    assert sorted(line for line in lines if line.startswith("[")) == workers
    assert all(line in workers or re.match(r"\d\d:\d\d:\d\d info ", line) for line in lines), lines


@pytest.mark.parametrize(("workers", "flags"), [(1, []), (2, ["--log-line-prefix-template="])])
def test_single_worker_or_empty_template_has_no_prefix(elastic, terminal, workers, flags):
    shown = terminal(f"--nproc-per-node={workers}", *flags, elastic.script("talk.py", TALK))
    assert shown.end() == 0
    lines = shown.text.splitlines()
    assert lines.count("step 1") == lines.count("warning") == workers


def test_output_to_a_pipe_has_utc_times_and_no_prefix(elastic):
    done = elastic.run("--nproc-per-node=2", elastic.script("talk.py", TALK))
    assert sorted(done.out.splitlines()) == ["step 1", "step 1"]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info     run started:", done.err)


def test_failure_is_logged_once_and_then_reported(elastic, terminal):
    code = """
    import os, time
    if os.environ["RANK"] == "1" or os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("no samples")
    time.sleep(60)
    """
    shown = terminal("--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=job7", elastic.script("fail.py", code))
    assert shown.end() == 1
    log, _, report = shown.text.partition("elastic: ")
    last_round = log[log.rindex("round formed") :]
    assert last_round.count("exit code 1") == 1
    assert last_round.count("worker failed") == 1
    first, _, cause = report.partition("\n\n")
    assert first == "job job7 failed: the only restart has been used (--max-restarts=1)"
    assert cause.startswith("Root cause (round 2, after 1 restart): rank 1 (local rank 1, pid ")
    assert b"\x1b[1;31mRoot cause" in shown.raw
    assert b"\x1b[1;31melastic: job job7 failed" in shown.raw


def test_ctrl_c_is_no_warning(elastic, terminal):
    code = """
    import time
    print("training", flush=True)
    time.sleep(60)
    """
    shown = terminal("--nproc-per-node=2", elastic.script("long.py", code))
    shown.until(lambda text: text.count("training") == 2)
    shown.press(b"\x03")
    assert shown.end() == 128 + signal.SIGINT
    assert re.search(r"^\^?C?\d\d:\d\d:\d\d info     signal received: signal=SIGINT$", shown.text, re.M), shown.text
    assert not re.search(r"^\S+ (warning|error)", shown.text, re.M), shown.text
    assert shown.text.rstrip().endswith(" stopped by SIGINT")


def test_progress_bar_shows_before_its_line_ends(elastic, terminal):
    code = """
    import os, pathlib, sys, time
    if os.environ["RANK"] == "0":
        sys.stderr.write("\\r 10% |#    |")
        sys.stderr.flush()
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    """
    shown = terminal("--nproc-per-node=2", elastic.script("bar.py", code))
    shown.until(lambda text: "[rank0]  10% |#    |" in text)
    (elastic.cwd / "go").touch()
    assert shown.end() == 0

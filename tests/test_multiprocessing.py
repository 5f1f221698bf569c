"""Processes without an agent. tests/e2e/programs/processes.py compares them with torch's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from elastic_testing import eventually

from elastic_core.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std, start_processes

pytestmark = pytest.mark.integration


class Nowhere(LogsSpecs):
    """Sets no destinations."""

    root_log_dir = None

    def reify(self, envs):
        return LogsDest()


@pytest.fixture(scope="module", autouse=True)
def first_job():
    """The first job opens a descriptor that stays open, with which the process table can always be read."""
    start_processes("job", "true", {0: ()}, {0: {}}, Nowhere()).wait()


@pytest.fixture
def start():
    made = []

    def start(entrypoint, *args, envs=None, specs=None, **more):
        ranks = range(len(args))
        envs = envs or {rank: {} for rank in ranks}
        made.append(start_processes("job", entrypoint, dict(enumerate(args)), envs, specs or Nowhere(), None, **more))
        return made[-1]

    yield start
    for context in made:
        context.close(signal.SIGKILL)


def rank_of(number):
    return number, os.environ["NUMBER"]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_functions_return_by_rank(method, start):
    context = start(rank_of, (0,), (1,), envs={0: {"NUMBER": "a"}, 1: {"NUMBER": "b"}}, start_method=method)
    result = context.wait()
    assert result.return_values == {0: (0, "a"), 1: (1, "b")}
    assert not result.is_failed()
    assert context.wait() is result


def test_failed_process_ends_the_rest(start):
    context = start("sh", ("-c", "exit 3"), ("-c", "sleep 300"))
    result = context.wait()
    assert result.failures[0].global_rank == -1
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 3}
    assert result.return_values == {}
    assert not any(psutil.pid_exists(pid) for pid in context.pids().values())


def test_wait_returns_none_at_its_timeout(start):
    context = start("sleep", ("300",))
    assert context.wait(0) is None
    begun = time.monotonic()
    assert context.wait(0.1) is None
    assert time.monotonic() - begun >= 0.1
    assert psutil.pid_exists(context.pids()[0])


def test_wait_releases_everything(start):
    before = set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()
    assert start("true", ()).wait().return_values == {0: None}
    assert (set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()) == before


def test_close_ends_processes_and_releases_everything(start, tmp_path):
    before = set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()
    ignores = f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    context = start("sh", ("-c", ignores))
    eventually(lambda: (tmp_path / "ready").exists())
    context.close(signal.SIGTERM, timeout=0.1)
    context.close()
    assert (set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()) == before
    assert context.wait().failures == {}


def test_logs_specs_set_output_and_error_files(start, tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    script = 'echo said; echo "{\\"message\\": \\"no samples\\"}" > $TORCHELASTIC_ERROR_FILE; exit 1'
    result = start("sh", ("-c", script), specs=specs, duplicate_stdout_filters=["sai"]).wait()
    (out,) = tmp_path.glob("job_*/attempt_0/0/stdout.log")
    assert result.stdouts == {0: str(out)}
    assert out.read_text() == "said\n"
    assert result.failures[0].message == "no samples"
    assert result.failures[0].error_file == str(out.with_name("error.json"))
    assert (out.parent.parent / "filtered_stdout.log").read_text() == "[job0]:said\n"


def test_logs_specs_may_leave_error_files_out(start):
    class Null(DefaultLogsSpecs):
        def reify(self, envs):
            envs[0]["TORCHELASTIC_ERROR_FILE"] = ""  # as torch's class does for /dev/null
            return super().reify(envs)

    script = 'echo "{\\"message\\": \\"no samples\\"}" > $TORCHELASTIC_ERROR_FILE; exit 1'
    result = start("sh", ("-c", script), specs=Null(os.devnull)).wait()
    assert result.failures[0].message == "no samples"


@pytest.mark.parametrize(("args", "envs"), [({}, {}), ({1: ()}, {1: {}}), ({0: ()}, {}), ({0: ()}, {0: {}, 1: {}})])
def test_mismatched_ranks_are_refused(args, envs):
    with pytest.raises(RuntimeError, match="args and envs must have the same keys"):
        start_processes("job", "true", args, envs, Nowhere())


def test_invalid_command_leaves_nothing():
    before = set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()
    with pytest.raises(ValueError, match="no-such-program"):
        start_processes("job", "no-such-program", {0: ()}, {0: {}}, Nowhere())
    assert (set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()) == before


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_signal_handler_can_close_during_a_wait(start):
    """Even while more signals arrive, as after a second Ctrl-C. Python must not write them to a closed file."""
    context = start(time.sleep, (600,), start_method="fork")
    before = signal.signal(signal.SIGALRM, lambda *_: context.close(signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.002)
    try:
        assert context.wait() is not None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


PROGRAM = """
import sys
import time
from elastic_core.multiprocessing import DefaultLogsSpecs, start_processes

if __name__ == "__main__":
    more = {"envs": {0: {}}, "logs_specs": DefaultLogsSpecs(), "start_method": sys.argv[1]}
    print(start_processes("job", ["python", "train.py"], {0: ()}, **more).wait(60).failures[0].exitcode)
    print(*start_processes("job", time.sleep, {0: (600,)}, **more).pids().values(), flush=True)
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_program_survives_a_bad_entry_point_and_ends_its_processes(method, tmp_path):
    """The first entry point is not callable. The program does not wait for the second process; at its exit, Python's
    multiprocessing would."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, method], capture_output=True, text=True, timeout=300)
    assert "KeyboardInterrupt" in done.stderr
    exitcode, pid = map(int, done.stdout.split())
    assert (exitcode, psutil.pid_exists(pid)) == (1, False)

"""If a worker cannot start, the others are stopped, nothing stays open, and the error names the reason."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import threading

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.workers.process import CommandStarter, thread_sentinel

SLEEP = "import time; time.sleep(600)"

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("temporary_folder")]


def test_log_dir_that_is_a_file_is_rejected(local_workers, python, plan, tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(ConfigurationError, match="--log-dir"):
        local_workers(python("pass"), log_dir=tmp_path / "logs").start(plan(round=2))


def test_failed_start_of_one_worker_stops_the_others(local_workers, plan, tmp_path, pipe, open_files, helpers_gone):
    """Rank 1's command does not exist."""
    tool = tmp_path / "tool-0"
    tool.write_text(f"#!/bin/sh\necho $$ >&{pipe[1]}\nsleep 600\n")
    tool.chmod(0o755)
    before = open_files()
    rounds = local_workers(CommandStarter((str(tmp_path / "tool-${local_rank}"),)))
    with pytest.raises(ConfigurationError, match="tool-1"):
        rounds.start(plan(2))
    assert rounds.workers.running() == []
    assert rounds.workers.leftovers() == []
    rounds.workers.close()
    helpers_gone()
    assert open_files() == before


def test_workers_can_be_stopped_without_free_descriptors(local_workers, python, plan, few_files):
    rounds = local_workers(python(SLEEP))
    rounds.start(plan(1))
    used = []
    try:
        with few_files(8):
            with contextlib.suppress(OSError):
                while True:
                    used.append(os.open(os.devnull, os.O_RDONLY))
            assert len(rounds.workers.leftovers()) == 1
            rounds.workers.send_signal(signal.SIGTERM)
            rounds.wait_for_exits(1)
            assert rounds.workers.leftovers() == []
    finally:
        for descriptor in used:
            os.close(descriptor)


@pytest.mark.parametrize("left", range(8, 27, 3))
def test_running_out_of_descriptors_leaves_no_worker_or_leak(
    local_workers, python, plan, left, open_files, few_files, helpers_gone
):
    rounds = local_workers(python(SLEEP))
    rounds.start(plan(1))  # so that the helpers run
    rounds.workers.send_signal(signal.SIGKILL)
    rounds.wait_for_exits(1)
    rounds.finish()
    before = open_files()
    with few_files(left), pytest.raises(ConfigurationError, match="ulimit -n"):
        rounds.start(plan(5, round=2))
    assert rounds.workers.running() == []
    helpers_gone()
    assert open_files() == before
    rounds.start(plan(2, round=3))
    assert len(rounds.workers.running()) == 2


def test_too_few_devices_stop_workers_already_started(local_workers, python, plan):
    rounds = local_workers(python(SLEEP), virtual_local_rank=True, environment={"CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(ConfigurationError, match="CUDA_VISIBLE_DEVICES"):
        rounds.start(plan(2))
    assert rounds.workers.running() == []


def test_failed_sentinel_stops_all_workers(local_workers, python, plan, until, running):
    """For example, descriptors run out between a worker's start and its sentinel."""
    seen = []

    def sentinel(pid):
        seen.append(pid)
        if len(seen) == 2:
            raise OSError(24, "Too many open files")
        return thread_sentinel(pid)

    rounds = local_workers(python(SLEEP), sentinel=sentinel)
    with pytest.raises(ConfigurationError, match="cannot start 3 workers: Too many open files"):
        rounds.start(plan(3))
    assert len(seen) == 2
    assert not any(map(running, seen))
    assert rounds.workers.running() == []


def test_helpers_without_free_descriptors_fail_the_start(local_workers, python, plan, few_files):
    rounds = local_workers(python("pass"))
    with few_files(1), pytest.raises(ConfigurationError, match=r"cannot start 3 workers: .*ulimit -n"):
        rounds.start(plan(3))
    assert {ended.exitcode for ended in rounds.run(plan(3))} == {0}


def test_missing_temporary_folder_names_tmpdir(local_workers, python, plan, temporary_folder):
    temporary_folder.rmdir()
    with pytest.raises(ConfigurationError, match=f"TMPDIR: .*{temporary_folder}.*: No such file or directory"):
        local_workers(python("pass")).start(plan())


@pytest.mark.parametrize("left", ["nothing", "a file"])
def test_removed_scratch_folder_is_recreated(local_workers, python, plan, temporary_folder, left):
    rounds = local_workers(
        python("import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('boom'); os._exit(1)")
    )
    rounds.run(plan())
    [scratch] = temporary_folder.iterdir()
    shutil.rmtree(scratch)
    if left == "a file":
        scratch.write_text("")
    rounds.run(plan(round=2))
    assert rounds.workers.failures()[0].message == "boom"


def test_scratch_folder_is_locked_against_tmpfiles_cleanup(local_workers, python, plan, temporary_folder):
    """systemd-tmpfiles skips a folder that it cannot lock exclusively."""
    rounds = local_workers(python("pass"))
    rounds.run(plan())
    [scratch] = temporary_folder.iterdir()
    folder = os.open(scratch, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
    rounds.workers.close()
    assert not list(temporary_folder.iterdir())


def test_irreplaceable_error_file_blames_log_dir(local_workers, python, plan, tmp_path):
    (tmp_path / "job" / "round-1" / "rank-0.error.json").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"--log-dir: .*error\.json: "):
        local_workers(python("pass"), log_dir=tmp_path).start(plan())


@pytest.fixture
def no_threads():
    """Threads cannot start: their stacks would exceed the address space."""
    before = threading.stack_size(1 << 47)
    yield
    threading.stack_size(before)


@pytest.mark.parametrize("sentinel", [None, thread_sentinel])
def test_running_out_of_threads_leaves_no_worker_or_leak(
    local_workers, python, plan, sentinel, no_threads, running, open_files
):
    started, before = [], open_files()

    class Recording(CommandStarter):
        def start(self, launch):
            child = super().start(launch)
            started.append(child.pid)
            return child

    rounds = local_workers(Recording((sys.executable, "-S", "-c", SLEEP)), sentinel=sentinel)
    with pytest.raises(ConfigurationError, match=r"workers: can't start new thread; .*ulimit -u"):
        rounds.start(plan(2))
    assert len(started) == (2 if sentinel is None else 1)
    assert not any(map(running, started))
    assert rounds.workers.running() == []
    rounds.workers.close()
    assert open_files() == before

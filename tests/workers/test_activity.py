"""The agent's samples of the activity of real workers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import elastic_core
from elastic_core.watchdog.beat import BEAT_FILE

pytestmark = pytest.mark.integration

HERE = str(Path(elastic_core.__file__).parents[1])
BEAT = f"sys.path.insert(0, {HERE!r}); from elastic_core.watchdog import beat; beat()"
BURN = "end = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
LARGE_OUTPUT = """
import threading
threading.Thread(target=os.write, args=(2, b"a line\\n" * 150_000), daemon=True).start()
"""
BURN_IN_CHILD = f"child = os.fork()\nif child == 0:\n    exec({BURN!r}); os._exit(0)\nos.waitpid(child, 0)"


@pytest.fixture
def worker(local_workers, python, plan, tmp_path, lines_of):
    """A function that starts a worker and returns a function that runs code in it and samples it."""
    paths = [tmp_path / name for name in ("orders", "answers")]
    for path in paths:
        os.mkfifo(path)
    orders, answers = (os.open(path, os.O_RDWR) for path in paths)
    code = """
        import os, sys, time
        done = os.open(sys.argv[2], os.O_WRONLY)
        for line in open(sys.argv[1]):
            exec(eval(line))
            os.write(done, b"done\\n")
    """

    def worker(*progress, **more):
        rounds = local_workers(python(code, *paths), progress=progress, **more)
        rounds.start(plan())

        def after(order="pass"):
            os.write(orders, f"{order!r}\n".encode())
            lines_of(answers)
            (sample,) = rounds.workers.samples()
            return sample

        after.workers = rounds.workers
        return after

    yield worker
    os.close(orders)
    os.close(answers)


def test_output_of_both_streams_is_counted(worker, until):
    sample_after = worker("log", watched=True)
    assert sample_after().written == 0
    sample_after("print('12345', flush=True)")
    until(lambda: sample_after().written == 6, "six bytes")
    sample_after("print('12345', file=sys.stderr)")
    until(lambda: sample_after().written == 12, "twelve bytes")


def test_cpu_time_includes_child_processes(worker):
    sample_after = worker("cpu")
    before = sample_after().cpu
    assert sample_after().cpu - before < 0.05
    after = sample_after(BURN)
    assert after.cpu - before >= 0.08
    assert sample_after(BURN_IN_CHILD).cpu - after.cpu >= 0.08


def test_every_heartbeat_changes_the_sample(worker):
    sample_after = worker("beat")
    assert [sample_after().beats, sample_after().beats] == [0, 0]
    first = sample_after(BEAT).beats
    assert sample_after().beats == first != 0
    assert sample_after("beat()").beats not in (0, first)


def test_unselected_progress_signs_are_not_sampled(worker):
    sample_after = worker("log")
    sample = sample_after(f"assert {BEAT_FILE!r} not in os.environ\n{BURN}")
    assert (sample.cpu, sample.beats) == (0.0, 0)


def test_heartbeat_file_is_private_and_removed_after_round(worker):
    sample_after = worker("beat")
    environ = Path(f"/proc/{sample_after().pid}/environ").read_bytes().split(b"\0")
    (path,) = [Path(item.partition(b"=")[2].decode()) for item in environ if item.startswith(f"{BEAT_FILE}=".encode())]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    sample_after.workers.send_signal(9)
    sample_after.workers.finish()
    assert not path.exists()


def test_worker_blocked_on_the_console_is_reported_held_up(worker, until):
    """The console is a pipe without a reader."""
    reader, writer = os.pipe()
    saved = os.dup(2)
    os.dup2(writer, 2)
    try:
        sample_after = worker("log")
        sample_after(LARGE_OUTPUT)
        until(lambda: sample_after().held_up, "the console to stall")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(reader)  # unblocks the writers
        os.close(writer)


def test_finished_round_has_no_samples(worker):
    sample_after = worker("log", "cpu", "beat")
    sample_after.workers.send_signal(9)
    sample_after.workers.finish()
    assert sample_after.workers.samples() == []

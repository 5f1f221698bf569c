"""What real workers have done so far, as the agent samples it."""

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
TALK_MUCH = """
import threading
threading.Thread(target=os.write, args=(2, b"x" * 1_000_000), daemon=True).start()
"""
BURN_IN_CHILD = f"child = os.fork()\nif child == 0:\n    exec({BURN!r}); os._exit(0)\nos.waitpid(child, 0)"


@pytest.fixture
def worker(local_workers, python, plan, tmp_path, lines_of):
    """A function that starts a worker and returns a function that lets it run some code and then looks at it."""
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
    look = worker("log", watched=True)
    assert look().written == 0
    look("print('12345', flush=True)")
    until(lambda: look().written == 6, "six bytes")
    look("print('12345', file=sys.stderr)")
    until(lambda: look().written == 12, "twelve bytes")


def test_cpu_time_includes_child_processes(worker):
    look = worker("cpu")
    before = look().cpu
    assert look().cpu - before < 0.05
    after = look(BURN)
    assert after.cpu - before >= 0.08
    assert look(BURN_IN_CHILD).cpu - after.cpu >= 0.08


def test_heartbeats_are_counted(worker):
    look = worker("beat")
    assert [look().beats, look().beats] == [0, 0]
    assert look(BEAT).beats == 1
    assert look().beats == 1
    assert look("beat()").beats == 2


def test_unselected_progress_signs_are_not_sampled(worker):
    look = worker("log")
    sample = look(f"assert {BEAT_FILE!r} not in os.environ\n{BURN}")
    assert (sample.cpu, sample.beats) == (0.0, 0)


def test_heartbeat_file_is_private_and_removed_after_round(worker):
    look = worker("beat")
    environ = Path(f"/proc/{look().pid}/environ").read_bytes().split(b"\0")
    (path,) = [Path(item.partition(b"=")[2].decode()) for item in environ if item.startswith(f"{BEAT_FILE}=".encode())]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    look.workers.send_signal(9)
    look.workers.finish()
    assert not path.exists()


def test_worker_blocked_on_the_console_is_reported_held_up(worker, until):
    """The console is a pipe that nobody reads."""
    reader, writer = os.pipe()
    saved = os.dup(2)
    os.dup2(writer, 2)
    try:
        look = worker("log")
        look(TALK_MUCH)
        until(lambda: look().held_up, "the console to stall")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(reader)  # and whoever writes there goes on
        os.close(writer)


def test_finished_round_has_no_samples(worker):
    look = worker("log", "cpu", "beat")
    look.workers.send_signal(9)
    look.workers.finish()
    assert look.workers.samples() == []

"""Real workers that hang in various ways: their stacks, and which processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from elastic_core.workers import hang as hang_module
from elastic_core.workers import sessions
from elastic_core.workers.hang import ANSWER, NO_STACK
from elastic_core.workers.process import CommandStarter

pytestmark = pytest.mark.integration

LONG = 30.0  # seconds the agent may wait for an event that is certain to come
WAIT = """
    import os, sys, time
    def train_step():
        os.write(2, b"ready\\n")
        {hang}
    train_step()
"""
SLEEP = WAIT.format(hang="time.sleep(600)")


@pytest.fixture
def hang(local_workers, plan, until, monkeypatch):
    """A function that starts workers and waits until all are ready; returns rounds and process ids. `patience`: seconds
    a worker has to answer; on a stalled machine the agent's own limit would be too short."""

    def hang(starter, workers=1, faulthandler=True, ready="ready", patience=LONG, **more):
        for name, seconds in {"ANSWER": patience, "SPY": LONG, "CONSOLE": LONG, "END": LONG}.items():
            monkeypatch.setattr(hang_module, name, seconds)
        rounds = local_workers(starter, faulthandler=faulthandler, redirects=lambda rank: 2, **more)
        pids = rounds.start(plan(workers))

        def is_ready(rank):
            # The output of a worker is known once it has come through its pipe.
            return any(ready in path.read_text() for path in more["log_dir"].rglob(f"rank-{rank}.err"))

        for rank in pids:
            until(lambda rank=rank: is_ready(rank), "the worker to be ready")
        return rounds, pids

    return hang


def failure_of(rounds, rank=0):
    rounds.workers.send_signal(signal.SIGKILL)
    while rounds.workers.running():
        rounds.wait_for_exits(1)
    rounds.finish()
    return rounds.workers.failures()[rank]


def killed(rounds, pid, rank=0):
    assert rounds.workers.kill(pid, "hang: it hangs") == rank
    failure = failure_of(rounds, rank)
    assert failure.reason == "hang: it hangs"
    assert failure.hung and failure.curable
    return failure


def test_sleeping_worker_leaves_its_stack(hang, python, tmp_path):
    """Before the round ends, because other nodes are notified immediately, and only once if the job ends."""
    rounds, pids = hang(python(SLEEP), log_dir=tmp_path)
    assert rounds.workers.kill(pids[0], "hang: it hangs") == 0
    failure = rounds.workers.failures()[0]
    lines = failure.stack.splitlines()
    assert lines[0].startswith("Current thread 0x")
    assert [line.rpartition(" in ")[2] for line in lines[1:]] == ["train_step", "<module>"]
    assert rounds.workers.kill(pids[0], "hang: once more") is None
    failure = failure_of(rounds)
    assert (failure.reason, failure.hung, failure.signal_name()) == ("hang: it hangs", True, "SIGABRT")
    assert failure.stderr_tail == ("ready",)


def test_workers_hung_in_c_with_the_interpreters_lock_leave_their_stacks(hang, python, tmp_path):
    """The end of each ends the wait for it."""
    code = WAIT.format(hang="import ctypes; ctypes.PyDLL(None).pause()")
    rounds, pids = hang(python(code), workers=4, log_dir=tmp_path)

    def seconds(pid):
        begun = time.monotonic()
        rounds.workers.kill(pid, "hang: it hangs")
        return time.monotonic() - begun

    assert all(seconds(pid) < LONG for pid in pids.values())
    failure_of(rounds)
    assert all(" in train_step" in failure.stack for failure in rounds.workers.failures().values())


def test_stopped_worker_leaves_its_stack(hang, python, tmp_path):
    rounds, pids = hang(python(SLEEP), log_dir=tmp_path)
    os.kill(pids[0], signal.SIGSTOP)
    assert " in train_step" in killed(rounds, pids[0]).stack


def test_stack_has_all_threads_with_the_main_one_first(hang, python, tmp_path):
    code = """
        import os, threading, time
        for _ in range(1000):
            os.write(2, b"noise " * 20 + b"\\n")
        barrier = threading.Barrier(3)
        def fetch(depth):
            if depth:
                fetch(depth - 1)
            barrier.wait()
            time.sleep(600)
        for _ in range(2):
            threading.Thread(target=fetch, args=(30,), daemon=True).start()
        def train_step():
            barrier.wait()
            os.write(2, b"ready\\n")
            time.sleep(600)
        train_step()
    """
    rounds, pids = hang(python(code), log_dir=tmp_path)
    stack = killed(rounds, pids[0]).stack
    assert [thread.count(" in fetch") for thread in stack.split("\n\n")] == [0, 31, 31]
    assert " in train_step" in stack.splitlines()[1]
    assert "noise" not in stack


@pytest.mark.parametrize(
    ("code", "why", "patience"),
    [
        ("signal.signal(signal.SIGABRT, signal.SIG_IGN)", "the worker has no handler for SIGABRT", LONG),
        (
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGABRT})",
            "the process did not react to SIGABRT for 0.5 s",
            ANSWER,
        ),
        ("signal.signal(signal.SIGABRT, lambda *_: os._exit(3))", "the process died of SIGABRT, but no stack", LONG),
        ("os.dup2(os.open(os.devnull, os.O_WRONLY), 2)", "stderr, perhaps because stderr was redirected", LONG),
    ],
    ids=["ignored", "blocked", "handled", "stderr elsewhere"],
)
def test_missing_stack_is_explained(code, why, patience, hang, python, tmp_path):
    script = f"""
        import os, signal, sys, time
        terminal = os.dup(2)
        {code}
        os.write(terminal, b"ready\\n")
        time.sleep(600)
    """
    rounds, pids = hang(
        python(script), workers=3, patience=patience, log_dir=tmp_path, environment={"PATH": "/nowhere"}
    )
    seconds = []
    for rank, pid in pids.items():
        begun = time.monotonic()
        assert rounds.workers.kill(pid, "hang: it hangs") == rank
        seconds.append(time.monotonic() - begun)
    failure_of(rounds)
    for failure in rounds.workers.failures().values():
        assert failure.reason == "hang: it hangs"
        assert failure.hung and failure.curable
        assert failure.stack.startswith(NO_STACK)
        assert why in failure.stack
    assert len(rounds.workers.failures()) == 3
    assert max(seconds) < LONG


def test_non_python_worker_is_killed_without_stack(hang, tmp_path, until):
    starter = CommandStarter(("/bin/sh", "-c", "echo ready >&2; exec sleep 600"))
    rounds, pids = hang(starter, log_dir=tmp_path, environment={"PATH": "/usr/bin:/bin"})
    until(lambda: sessions.command_of(pids[0]) == "sleep 600", "the shell to exec sleep")
    until(lambda: sessions.best_table().stat(pids[0]).state == "S", "the program to be loaded and asleep")
    failure = killed(rounds, pids[0])
    assert failure.signal_name() == "SIGKILL"
    assert failure.stack == (
        "no stack: the worker has no handler for SIGABRT: it is not Python, or runs without faulthandler; "
        "py-spy, which could read the stacks from outside, is not installed"
    )


def test_python_started_by_a_shell_leaves_its_stack(hang, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SLEEP))
    starter = CommandStarter(("/bin/sh", "-c", f"{sys.executable} -S {script}; echo unreachable >&2"))
    rounds, pids = hang(starter, log_dir=tmp_path)
    failure = killed(rounds, pids[0])
    assert " in train_step" in failure.stack
    assert failure.signal_name() == "SIGKILL"
    assert not any("unreachable" in path.read_text() for path in tmp_path.rglob("rank-0.*"))


def test_hung_worker_exiting_0_on_sigabrt_has_failed(hang, call, function_module, tmp_path):
    module = function_module(
        """
        import os, signal, time
        def train_step():
            signal.signal(signal.SIGABRT, lambda *_: os._exit(0))
            os.write(2, b"ready\\n")
            time.sleep(600)
        """
    )
    rounds, pids = hang(call(module.train_step), log_dir=tmp_path)
    failure = killed(rounds, pids[0])
    assert failure.exitcode == 0
    assert rounds.workers.return_values() == {}


def test_py_spy_dumps_the_stack_if_faulthandler_is_off(hang, python, spy, tmp_path):
    script = 'echo "asked: $*"; echo; echo "Thread $3 (idle)"'
    environment = {**spy(script), "PYTHONFAULTHANDLER": ""}  # turned off by the user
    rounds, pids = hang(python(SLEEP), log_dir=tmp_path, environment=environment)
    assert killed(rounds, pids[0]).stack == f"asked: dump --pid {pids[0]}\n\nThread {pids[0]} (idle)"


def test_hung_worker_is_killed_with_its_children_only(hang, python, tmp_path, running, until):
    code = """
        import os, subprocess, sys, time
        child = subprocess.Popen(["sleep", "600"])
        os.write(2, b"ready %d\\n" % child.pid)
        time.sleep(600)
    """
    rounds, pids = hang(python(code), workers=2, ready="ready", log_dir=tmp_path)
    children = [int(path.read_text().split()[1]) for rank in (0, 1) for path in tmp_path.rglob(f"rank-{rank}.err")]
    assert rounds.workers.kill(pids[1], "hang: it hangs") == 1
    until(lambda: not running(children[1]), "the end of the child")
    assert running(children[0]) and running(pids[0])
    assert [ended.local_rank for ended in rounds.wait_for_exits(1)] == [1]
    assert rounds.workers.running() == [0]
    assert failure_of(rounds, 1).caused_by is None
    assert list(rounds.workers.failures()) == [1]  # the other one was stopped


def test_timer_of_a_child_kills_its_worker_and_dumps_both(hang, python, tmp_path, running):
    code = """
        import os, time
        reader, writer = os.pipe()
        def fetch():
            os.write(writer, b"!")
            time.sleep(600)
        def train_step():
            os.read(reader, 1)
            os.write(2, b"ready %d\\n" % child)
            time.sleep(600)
        child = os.fork()
        fetch() if child == 0 else train_step()
    """
    rounds, _ = hang(python(code), log_dir=tmp_path)
    child = int(next(tmp_path.rglob("rank-0.err")).read_text().split()[1])
    failure = killed(rounds, child)
    assert " in fetch" in failure.stack and " in train_step" in failure.stack
    assert not running(child)


def test_kill_ignores_processes_that_are_not_workers(hang, python, tmp_path):
    rounds, _ = hang(python(SLEEP), log_dir=tmp_path)
    unrelated = subprocess.Popen(["sleep", "600"])
    try:
        for pid in (unrelated.pid, os.getpid(), 2**22 + 1):
            assert rounds.workers.kill(pid, "hang: it hangs") is None
        assert unrelated.poll() is None
        assert rounds.workers.running() == [0]
    finally:
        unrelated.kill()
        unrelated.wait()


def test_kill_ignores_workers_of_the_last_round(hang, python, plan, tmp_path):
    rounds, pids = hang(python(SLEEP), log_dir=tmp_path)
    failure_of_last = killed(rounds, pids[0])
    again = rounds.start(plan(round=2))
    assert rounds.workers.kill(pids[0], "hang: stale") is None
    assert failure_of_last.pid == pids[0] != again[0]


def test_hang_is_the_cause_of_other_failures(hang, python, tmp_path):
    """Its peers fail in consequence, and their exits may be noticed at the same moment."""
    code = """
        import os, select, signal, time
        if os.environ["RANK"] == "0":  # aborts, as collectives do, when its peer has exited
            peer = os.pidfd_open(int(open(os.environ["PEER"]).read()))
            os.write(2, b"ready\\n")
            select.select([peer], [], [])
            os.kill(os.getpid(), signal.SIGABRT)
        with open(os.environ["PEER"], "w") as file:
            file.write(str(os.getpid()))
        os.write(2, b"ready\\n")
        time.sleep(600)
    """
    peer = tmp_path / "peer"
    os.mkfifo(peer)
    rounds, pids = hang(python(code), workers=2, log_dir=tmp_path, environment={**os.environ, "PEER": str(peer)})
    rounds.workers.kill(pids[1], "hang: it hangs")
    rounds.wait_for_exits(2)
    rounds.finish()
    failures = rounds.workers.failures()
    assert (failures[1].caused_by, failures[0].caused_by) == (None, 1)
    assert failures[1].stack != failures[0].stack


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_hung_function_leaves_its_stack(method, hang, call, function_module, tmp_path):
    module = function_module(
        """
        import os, time
        def train_step():
            os.write(2, b"ready\\n")
            time.sleep(600)
        """
    )
    rounds, pids = hang(call(module.train_step, method=method), log_dir=tmp_path)
    assert " in train_step" in killed(rounds, pids[0]).stack


def test_kill_without_ask_skips_the_stack(hang, python, tmp_path):
    rounds, pids = hang(python(SLEEP), log_dir=tmp_path)
    assert rounds.workers.kill(pids[0], "hang: it hangs", ask=False) == 0
    failure = failure_of(rounds)
    assert failure.stack.startswith("no stack: many workers hung")
    assert failure.signal_name() == "SIGKILL"


def test_many_unkillable_workers_do_not_delay_the_agent(hang, python, tmp_path):
    """The agent would wait for each worker whose exit it cannot see."""
    pipes = []

    def never(pid):
        pipes.append(os.pipe())
        return pipes[-1][0]

    rounds, pids = hang(python(SLEEP), workers=8, log_dir=tmp_path, sentinel=never)
    begun = time.monotonic()
    for rank, pid in pids.items():
        assert rounds.workers.kill(pid, "hang: it hangs", ask=False) == rank
    assert time.monotonic() - begun < LONG  # the wait for a single one
    assert rounds.workers.running() == list(range(8))
    assert all(failure.hung for failure in rounds.workers.failures().values())
    for _, writer in pipes:
        os.close(writer)
    rounds.wait_for_exits(8)
    rounds.finish()
    assert len(rounds.workers.failures()) == 8


def test_crashed_worker_leaves_its_stack_and_stderr_tail(hang, python, tmp_path):
    rounds, _ = hang(python(WAIT.format(hang="os.write(2, b'terminate called\\n'); os.abort()")), log_dir=tmp_path)
    rounds.wait_for_exits(1)
    failure = failure_of(rounds)
    assert not failure.hung
    assert failure.stderr_tail == ("ready", "terminate called")
    assert " in train_step" in failure.stack


def test_crash_of_a_child_keeps_the_workers_stderr_tail(hang, python, tmp_path):
    code = """
        import os
        os.write(2, b"ready\\n")
        child = os.fork()
        if child == 0:
            os.abort()
        os.waitpid(child, 0)
        def load_config():
            eval("1 +")
        load_config()
    """
    rounds, _ = hang(python(code), log_dir=tmp_path)
    rounds.wait_for_exits(1)
    failure = failure_of(rounds)
    frames = [
        line.rpartition(", in ")[2] for line in failure.stderr_tail if line.startswith("  File ") and ", in " in line
    ]
    assert frames == ["<module>", "load_config"]
    assert failure.stderr_tail[-1].startswith("SyntaxError: ")
    assert failure.curable
    assert "Traceback" not in failure.stack

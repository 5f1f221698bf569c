"""Programs that launch workers and handle child exits themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

IGNORING = """
import os, select, signal, sys
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.process import CommandStarter
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
plan = RoundPlan(1, "job", "here", "default", 0, 1, 1, 1, "h", 1, False, 0, 0, (WorkerRanks(0, 0, 0),))
workers = LocalWorkers(CommandStarter(("/bin/sh", "-c", "exit 3")), GroupPolicy(), dict(os.environ))
workers.start(plan)
select.select(list(workers.sentinels()), [], [])
print([ended.exitcode for ended in workers.reap()])
workers.finish()
workers.close()
"""


def test_failures_are_seen_with_sigchld_ignored_at_start():
    shell = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", shell, sys.executable, "-c", IGNORING], capture_output=True, text=True, timeout=180
    )
    assert (done.stdout, done.returncode) == ("[3]\n", 0), done.stderr


@pytest.mark.parametrize("kind", ["command", "fork", "spawn"])
def test_worker_reaped_by_its_host_program_has_failed(local_workers, python, call, plan, kind):
    rounds = local_workers(python("raise SystemExit(3)") if kind == "command" else call(os.getpid, method=kind))
    [pid] = rounds.start(plan()).values()
    os.waitpid(pid, 0)
    [ended] = rounds.wait_for_exits(1)
    rounds.finish()
    assert ended.exitcode != 0
    assert "exit code lost" in rounds.workers.failures()[0].reason


HOST = """
import os, signal

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
"""


def test_failures_are_seen_by_a_host_with_a_sigchld_handler():
    code = HOST + IGNORING.replace("[ended.exitcode for", "[ended.exitcode != 0 for")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert (done.stdout, done.returncode) == ("[True]\n", 0), done.stderr

"""One worker's process as the group sees it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.workers import WorkerRanks
from elastic_core.workers.process import (
    REAPED_BY_OTHERS,
    WorkerProcess,
    make_exits_visible,
    reap_child,
    thread_sentinel,
    wait_readable,
)
from elastic_core.workers.sessions import start_of

RANKS = WorkerRanks(0, 0, 0)


class PopenChild:
    def __init__(self, popen, own=None):
        self.popen = popen
        self.pid = popen.pid
        self.own = own

    def poll(self):
        return self.popen.poll()

    def own_sentinel(self):
        return self.own


def test_a_worker_is_reaped_once(spawn):
    popen = spawn("import sys; sys.stdin.read(); sys.exit(4)", stdin=-1)
    worker = WorkerProcess(RANKS, PopenChild(popen))
    assert (worker.pid, worker.start) == (popen.pid, start_of(popen.pid))
    worker.watch(thread_sentinel)
    assert not worker.reap()
    popen.stdin.close()
    assert wait_readable(worker.sentinel, 30)
    assert worker.reap()
    assert not worker.reap()
    assert (worker.exitcode, worker.sentinel) == (4, -1)


def test_a_child_s_own_sentinel_goes_before_others(spawn):
    reader, writer = os.pipe()
    worker = WorkerProcess(RANKS, PopenChild(spawn("pass"), reader))
    worker.watch(thread_sentinel)
    assert worker.sentinel == reader
    worker.release()
    worker.release()
    os.close(writer)


def test_a_child_is_reaped_with_its_code_or_that_of_its_signal(spawn):
    process = spawn("import sys; sys.exit(sys.stdin.read() == '' and 4)", stdin=-1)
    assert reap_child(process.pid) is None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert reap_child(process.pid) == 4
    killed = spawn("import time; time.sleep(600)")
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    assert reap_child(killed.pid) == -signal.SIGKILL


def test_a_child_that_others_waited_for_has_no_code(spawn):
    process = spawn("pass")
    process.wait()
    assert reap_child(process.pid) == REAPED_BY_OTHERS


@pytest.fixture
def ignored_ends():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_ends_of_children_are_not_ignored(ignored_ends):
    make_exits_visible()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    make_exits_visible()


def test_a_thread_cannot_undo_it_and_says_so(ignored_ends):
    raised = []

    def run():
        try:
            make_exits_visible()
        except ConfigurationError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "SIGCHLD" in raised[0]

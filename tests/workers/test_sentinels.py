"""Both kinds of sentinel, with real children."""

from __future__ import annotations

import os
import select

import pytest

from elastic_core.workers.process import open_sentinel, thread_sentinel, wait_readable

KINDS = [open_sentinel, thread_sentinel]
WAITS_FOR_INPUT = "import sys; sys.stdin.read(); raise SystemExit(3)"


@pytest.fixture
def sentinel_of():
    opened = []

    def sentinel_of(kind, pid):
        opened.append(kind(pid))
        return opened[-1]

    yield sentinel_of
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("kind", KINDS)
def test_sentinel_signals_exit_without_reaping(spawn, sentinel_of, kind):
    process = spawn(WAITS_FOR_INPUT, stdin=-1)
    fd = sentinel_of(kind, process.pid)
    assert not wait_readable(fd, 0)
    process.stdin.close()
    assert wait_readable(fd, 30)
    assert wait_readable(fd, 0)
    assert process.wait() == 3


@pytest.mark.parametrize("kind", KINDS)
def test_sentinel_of_an_ended_child_is_readable(spawn, sentinel_of, kind):
    process = spawn("pass")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert wait_readable(sentinel_of(kind, process.pid), 30)
    process.wait()
    assert wait_readable(sentinel_of(kind, process.pid), 30)


def test_forked_sibling_does_not_delay_the_sentinel(spawn, sentinel_of, pipe):
    """The sibling inherits the write end of the thread's pipe."""
    process = spawn(WAITS_FOR_INPUT, stdin=-1)
    fd = sentinel_of(thread_sentinel, process.pid)
    sibling = os.fork()
    if sibling == 0:
        process.stdin.close()
        os.close(pipe[1])
        select.select([pipe[0]], [], [], 60)
        os._exit(0)
    process.stdin.close()
    assert wait_readable(fd, 30)
    os.close(pipe[1])
    os.waitpid(sibling, 0)


@pytest.mark.parametrize("broken", [AttributeError, OSError(38, "Function not implemented")])
def test_thread_is_used_without_pidfd(spawn, sentinel_of, monkeypatch, broken):
    def pidfd_open(pid):
        raise broken

    monkeypatch.setattr(os, "pidfd_open", pidfd_open, raising=False)
    process = spawn(WAITS_FOR_INPUT, stdin=-1)
    fd = sentinel_of(open_sentinel, process.pid)
    assert not wait_readable(fd, 0)
    process.stdin.close()
    assert wait_readable(fd, 30)

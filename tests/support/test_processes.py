"""Resources that forked children drop."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from elastic_core.support.processes import drop_in_forks, no_forks, stop_dropping

pytestmark = pytest.mark.integration


@pytest.fixture
def pipe():
    """A pipe, `(read end, write end)`; a forked child inherits both."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


class Owner:
    def __init__(self, fd):
        self.fd = fd

    def drop(self):
        os.write(self.fd, b"dropped in %d\n" % os.getpid())


@pytest.fixture
def fork():
    """A function that forks a child, which exits immediately, and returns its process id."""

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return child

    return fork


@pytest.fixture
def dropped(pipe):
    """A function that returns the lines written so far."""

    def dropped():
        os.write(pipe[1], b".")
        return os.read(pipe[0], 10_000).decode()[:-1].splitlines()

    return dropped


def test_owners_drop_in_every_child(pipe, fork, dropped):
    owner = Owner(pipe[1])
    drop_in_forks(owner)
    drop_in_forks(owner)
    assert dropped() == []
    children = [fork(), fork()]
    assert dropped() == [f"dropped in {child}" for child in children]


def test_collected_owners_do_not_drop(pipe, fork, dropped):
    drop_in_forks(Owner(pipe[1]))
    gc.collect()
    fork()
    assert dropped() == []


def test_removed_owners_do_not_drop(pipe, fork, dropped):
    owner = Owner(pipe[1])
    drop_in_forks(owner)
    stop_dropping(owner)
    stop_dropping(owner)
    fork()
    assert dropped() == []


class Failing:
    def drop(self):
        raise OSError("closed already")


def test_failing_owner_does_not_prevent_others(pipe, fork, dropped):
    owners = [Failing(), Owner(pipe[1]), Failing()]
    for owner in owners:
        drop_in_forks(owner)
    child = fork()
    assert dropped() == [f"dropped in {child}"]


def test_fork_waits_until_subprocess_has_started_its_process(fork):
    forked = threading.Event()
    with no_forks:
        thread = threading.Thread(target=lambda: (fork(), forked.set()))
        thread.start()
        assert not forked.wait(0.2)
    thread.join(60)
    assert forked.is_set()


def test_child_forked_under_the_lock_can_fork_in_other_threads(pipe):
    """Such as a worker that runs a function."""
    with no_forks:
        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=lambda: no_forks.acquire(timeout=30) and os.write(pipe[1], b"free"))
            thread.start()
            thread.join()
            os.write(pipe[1], b".")
            os._exit(0)
        os.waitpid(child, 0)
    assert os.read(pipe[0], 9) == b"free."

"""What forked children do not keep."""

from __future__ import annotations

import gc
import os

import pytest

from elastic_core.workers.forks import drop_in_forks


class Owner:
    def __init__(self, fd):
        self.fd = fd

    def drop(self):
        os.write(self.fd, b"dropped in %d\n" % os.getpid())


@pytest.fixture
def fork():
    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return child

    return fork


def test_owners_drop_in_the_child_only(pipe, fork, lines_of):
    owner = Owner(pipe[1])
    drop_in_forks(owner)
    child = fork()
    assert lines_of(pipe[0]) == [f"dropped in {child}"]
    assert owner.fd == pipe[1]


def test_owners_that_are_gone_are_not_asked(pipe, fork):
    drop_in_forks(Owner(pipe[1]))
    gc.collect()
    fork()
    os.close(pipe[1])
    assert os.read(pipe[0], 100) == b""


class Failing:
    def drop(self):
        raise OSError("closed already")


def test_one_that_fails_does_not_keep_the_others(pipe, fork, lines_of):
    owners = [Failing(), Owner(pipe[1]), Failing()]
    for owner in owners:
        drop_in_forks(owner)
    child = fork()
    assert lines_of(pipe[0]) == [f"dropped in {child}"]

"""Child exits are made visible again in a program that ignores SIGCHLD."""

from __future__ import annotations

import signal
import threading

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.workers.process import make_exits_visible


@pytest.fixture
def ignored_ends():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_make_exits_visible_resets_ignored_sigchld(ignored_ends):
    make_exits_visible()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    make_exits_visible()


def test_make_exits_visible_fails_in_a_thread(ignored_ends):
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

"""Calls that may hang run in their own threads."""

from __future__ import annotations

import threading

import pytest
from elastic_testing import Background, eventually

from elastic_core.errors import RendezvousConnectionError
from elastic_core.support.bounded import BackgroundCall, CallTimeout, within

LONG = 60.0


@pytest.fixture
def release():
    """An event for which hanging calls wait; set at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_call_error_is_raised_in_the_waiting_thread(error):
    def fails():
        raise error

    call = BackgroundCall(fails)
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            call.result(LONG)
        assert caught.value is error


@pytest.mark.parametrize("limit", [1e12, float("inf")])
def test_any_limit_can_be_waited_for(limit):
    assert within(limit, lambda: 1, "") == 1


def test_hanging_call_times_out_and_may_finish_later(release):
    call = BackgroundCall(lambda: release.wait(LONG) and "at last")
    with pytest.raises(CallTimeout):
        call.result(0.01)
    release.set()
    assert call.result(LONG) == "at last"


def test_interrupt_releases_current_and_later_waiters(release):
    call = BackgroundCall(lambda: release.wait(LONG))
    waiting = [Background(lambda: call.wait(LONG * 3)) for _ in range(2)]
    call.interrupt()
    assert [one.result() for one in (*waiting, Background(lambda: call.wait(LONG * 3)))] == [False] * 3
    release.set()
    eventually(lambda: call.wait(0.0))  # the call has ended all the same and has a value
    assert call.result()


def test_timeout_error_names_the_store(release):
    with pytest.raises(RendezvousConnectionError, match=r"the store at here:1 has not answered within 0\.1 s"):
        within(0.1, lambda: release.wait(LONG), "here:1")

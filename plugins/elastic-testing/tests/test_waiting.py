"""The helpers for tests of blocking calls."""

from __future__ import annotations

import threading

import pytest
from elastic_testing import Background, FakeClock, eventually


def test_background_call_runs_and_returns_its_result():
    go = threading.Event()
    call = Background(lambda: go.wait(60) and "done")
    assert call.running
    go.set()
    assert call.result() == "done"
    assert not call.running
    assert call.result() == "done"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_background_call_reraises_its_error(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        Background(fail).result()
    assert caught.value is error


def test_hanging_call_fails_the_test():
    go = threading.Event()
    short = Background(lambda: go.wait(60), timeout=0.01)
    with pytest.raises(AssertionError, match=r"still running after 0\.01 s"):
        short.result()
    with pytest.raises(AssertionError, match=r"still running after 0\.02 s"):
        short.result(0.02)
    go.set()
    assert short.result(60)


def test_condition_is_polled_until_it_is_true():
    asked = iter([0, None, "", "found", "later"])
    assert eventually(lambda: next(asked)) == "found"


def test_condition_that_stays_false_fails_the_test():
    clock, asked = FakeClock(), []

    def ask():
        asked.append(clock.advance(0.02))

    with pytest.raises(AssertionError, match=r"^the light did not become true within 0\.05 s$"):
        eventually(ask, 0.05, "the light", clock)
    assert len(asked) == 3

"""Handlers whose store is unreachable or unreadable while a round runs."""

from __future__ import annotations

import re

import pytest
from elastic_testing import FakeClock, eventually

from elastic_core.interfaces.handler import Outcome

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_long_outage_fences_and_short_one_does_not(job, how):
    """The failure timeout is 10 s. The last heartbeat may be one interval (1 s) older than the first failed attempt."""
    clock = FakeClock()
    one = job(1, 1, interval=1.0, attempts=10, clock=clock)
    one.form("a")
    handler, backend = one.handlers["a"], one.backends["a"]

    def is_away():
        return backend.hung.is_set() if how == "hangs" else "made the store unreachable" in handler.progress()

    def cut():
        backend.hung.clear()
        backend.hold.clear() if how == "hangs" else setattr(backend, "reachable", False)
        clock.advance(1.0)  # the next heartbeat is due
        eventually(is_away)

    cut()
    clock.advance(5.0)
    assert handler.verdict() is None
    backend.reachable = True
    backend.hold.set()
    beats = backend.calls["beat"]
    eventually(lambda: clock.advance(0.1) and backend.calls["beat"] > beats and "unreachable" not in handler.progress())
    cut()
    clock.advance(7.9)
    assert handler.verdict() is None
    for _ in range(3):
        clock.advance(0.4)  # a longer step would look like a suspended process
        verdict = handler.verdict()
    assert verdict.outcome is Outcome.FENCED
    match = re.match(
        r"the rendezvous store was unreachable for (\d+\.\d) s; after 10 s without a heartbeat", verdict.reason
    )
    assert match and 8.9 <= float(match.group(1)) <= 10.1
    end = "the store does not answer" if how == "hangs" else "the last error was: the test made the store unreachable"
    assert verdict.reason.endswith(end)


def test_failed_listener_stops_nothing(job, capsys):
    one = job(1, 1)
    handler = one.node("a")
    calls = []
    handler.subscribe(lambda: 1 // 0)
    handler.subscribe(lambda: calls.append(1))
    handler.next_rendezvous()
    one.backends["a"].reachable = False
    eventually(lambda: "made the store unreachable" in handler.progress())
    one.backends["a"].reachable = True
    count = one.backends["a"].calls["beat"]
    eventually(lambda: one.backends["a"].calls["beat"] > count + 2)
    assert calls
    assert "a listener raised ZeroDivisionError" in capsys.readouterr().err

"""Handlers whose store goes away, or cannot be read, while a round runs."""

from __future__ import annotations

import re
import threading
import time

import pytest
from handler_job import LONG

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.handler import Outcome
from elastic_core.testing import eventually


def fenced(job, how):
    """The verdict on an outage that is long, after one that was short; and how many seconds it took."""
    one = job(1, 1, attempts=5)
    one.form("a")
    handler, backend = one.handlers["a"], one.backends["a"]

    def cut(away):
        backend.reachable = not away or how == "hangs"
        backend.hold.clear() if away and how == "hangs" else backend.hold.set()

    begun = time.monotonic()
    cut(True)
    eventually(lambda: time.monotonic() - begun > 0.5)
    verdict = handler.verdict()
    assert verdict is None or time.monotonic() - begun > 0.8  # on a machine that stalled, the outage was long too
    cut(False)
    eventually(lambda: backend.calls["beat"] and handler.verdict() is None and handler.ask_again())
    count = backend.calls["beat"]
    eventually(lambda: backend.calls["beat"] > count + 1)
    begun = time.monotonic()
    cut(True)
    while (verdict := handler.verdict()) is None:
        assert time.monotonic() - begun < LONG
        pause = max(handler.ask_again() - time.monotonic(), 0.0)
        threading.Event().wait(min(pause, 1.0) + 0.001)
    return verdict, time.monotonic() - begun


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_long_outage_fences_and_a_short_one_does_not(job, how):
    """The window is 1 s, an interval of 0.2 s of which may have passed before the outage."""

    def soon():
        verdict, seconds = fenced(job, how)
        assert verdict.outcome is Outcome.FENCED
        told = re.search(r"out of reach for (\d+\.\d) s; after 1 s without a beat", verdict.reason)
        assert told and float(told.group(1)) >= 0.8
        assert seconds > 0.7
        assert ("does not answer at all" if how == "hangs" else "took it away") in verdict.reason
        return float(told.group(1)) < 2.5 and seconds < 2.5

    assert any(soon() for _ in range(3))  # a machine that stalls makes some late, a fault all


def test_an_unreadable_state_leaves_healthy_workers_alone(job):
    one = job(1, 1)
    one.form("a")
    with one.memory.changed:
        one.memory.state = (b"not ours", one.memory.writes + 1)
        one.memory.changed.notify_all()
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 1.5)
    assert one.handlers["a"].verdict() is None
    with pytest.raises(RendezvousStateError):
        one.handlers["a"].next_rendezvous()


def test_a_listener_that_raises_stops_nothing(job, capsys):
    one = job(1, 1)
    handler = one.node("a")
    told = []
    handler.subscribe(lambda: 1 // 0)
    handler.subscribe(lambda: told.append(1))
    handler.next_rendezvous()
    one.backends["a"].reachable = False
    eventually(lambda: "took it away" in handler.progress())
    one.backends["a"].reachable = True
    count = one.backends["a"].calls["beat"]
    eventually(lambda: one.backends["a"].calls["beat"] > count + 2)
    assert told
    assert "a listener raised ZeroDivisionError" in capsys.readouterr().err

from __future__ import annotations

from datetime import timedelta

import pytest

from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout, in_seconds


def test_timeouts_are_timedeltas_or_seconds():
    timeout = RendezvousTimeout(timedelta(minutes=1), last_call=0, close=2.5)
    assert (timeout.join, timeout.last_call) == (timedelta(minutes=1), timedelta())
    assert (timeout.close, timeout.heartbeat) == (timedelta(seconds=2.5), timedelta(seconds=2))
    assert in_seconds(timedelta(milliseconds=5)) == 0.005


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("join", 0, "a join timeout above 0 s, found"),
        ("join", timedelta(0), "a join timeout above 0 s, found"),
        ("close", -1, "a close timeout above 0 s, found"),
        ("heartbeat", 0, "a heartbeat timeout above 0 s, found"),
        ("join", float("inf"), "a timeout of at most 999999999 days, found inf s"),
        ("last_call", -1, "a last_call timeout of 0 s or more, found -1"),
    ],
)
def test_invalid_timeout_is_refused(name, value, what):
    with pytest.raises(ValueError, match=f"expected {what}"):
        RendezvousTimeout(**{name: value})


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"run_id": ""}, "the run id is empty"),
        ({"min_nodes": 0}, "expected 1 <= min_nodes <= max_nodes, found 0 and 2"),
        ({"min_nodes": 3}, "expected 1 <= min_nodes <= max_nodes, found 3 and 2"),
        ({"keep_alive_interval": 0}, "expected a keep_alive_interval above 0 s"),
        ({"keep_alive_max_attempt": 1}, "expected a keep_alive_max_attempt of 2 or more"),
    ],
)
def test_bounds_are_checked(changes, what):
    given = {"run_id": "job", "min_nodes": 1, "max_nodes": 2, "timeout": RendezvousTimeout(), **changes}
    with pytest.raises(ValueError, match=what):
        RendezvousSettings(**given)


def test_failure_timeout_is_interval_times_attempts(build):
    assert build.settings(keep_alive_interval=0.5, keep_alive_max_attempt=4).failure_timeout == 2.0

"""Verdicts of the warm start benchmark."""

from __future__ import annotations

import pytest

from benchmarks import warm
from benchmarks.recovery import Try

pytestmark = pytest.mark.integration


def tries(*seconds):
    return [Try("recovered", recovery_s=one, workers_s=0.1) for one in seconds]


@pytest.mark.parametrize(
    ("recovered", "expected"),
    [(tries(0.3, 0.4, 0.6), True), (tries(0.3, 0.4, 0.8), False), (tries(0.3, 0.5, 0.6), False), ([], None)],
)
def test_target_covers_the_median_and_every_try(recovered, expected):
    rows = warm.recovery_rows(warm.SETTINGS["node"], {"warm": recovered, "cold": tries(2.0)}, 60)
    assert rows[0].met is expected


def test_hung_try_misses_the_target():
    rows = warm.recovery_rows(warm.SETTINGS["c10d"], {"warm": [*tries(0.3), Try("hung")], "cold": tries(2.0)}, 60)
    assert [row.met for row in rows] == [False, None, True]
    assert rows[0].notes["warm"] == "1 hung (60 s)"
    assert str(rows[0].tries["warm"]) == "median of 1 of 2 tries, worst 0.3"

"""What the benchmark of warm start makes of what it has measured, and a table with three sides."""

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
def test_the_median_and_each_try_count(recovered, expected):
    rows = warm.recovery_rows(warm.SETTINGS["node"], {"warm": recovered, "cold": tries(2.0)}, 60)
    assert rows[0].met is expected


def test_a_try_that_did_not_recover_counts():
    rows = warm.recovery_rows(warm.SETTINGS["c10d"], {"warm": [*tries(0.3), Try("hung")], "cold": tries(2.0)}, 60)
    assert [row.met for row in rows] == [False, None, True]
    assert rows[0].notes["warm"] == "1 hung (60 s)"
    assert str(rows[0].tries["warm"]) == "median of 1 of 2 tries, worst 0.3"

"""What the benchmark of warm start makes of what it has measured, and a table with three sides."""

from __future__ import annotations

import pytest

from benchmarks import page, warm
from benchmarks.recovery import Try
from benchmarks.report import Report, Row, own, sides

pytestmark = pytest.mark.integration


class Agent:
    """Its log."""

    def __init__(self, *lines):
        self.output = [f"{line}\n" for line in lines]


def tries(*seconds):
    return [Try("recovered", recovery_s=one, workers_s=0.1) for one in seconds]


def test_three_sides_are_compared_with_the_second():
    row = Row("it", "s", {"warm": 1.0, "cold": 4.0, "torchrun": 5.0}, against=4.0)
    assert (sides([row.values]), row.ratio(), own(row.values)) == (("warm", "cold", "torchrun"), 0.25, 1.0)
    report = Report("warm", {}, [row]).as_dict()
    assert "| it [s] | 1 | 4 | 5 | 0.250 |  |  |" in page.table(report)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([{"elastic": 1.0}], ("elastic", "torchrun")),
        ([{"elastic": 1.0, "torchrun": 2.0}], ("elastic", "torchrun")),
        ([{"elastic": 1.0, "before": 2.0}], ("elastic", "before")),
        ([{"warm": 1.0, "cold": 2.0}], ("warm", "cold")),
    ],
)
def test_what_is_compared(values, expected):
    assert sides(values) == expected


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


def test_tries_are_shared_among_the_turns():
    assert warm.shares(12, 5) == [3, 3, 2, 2, 2]
    assert sum(warm.shares(3, 5)) == 3


def test_when_a_round_formed_is_read_from_the_log():
    lines = [f"2026-01-01T00:00:0{second}.250Z info     round formed: round={second}" for second in (1, 3)]
    early, late = (
        warm.round_formed(Agent(*lines[: number + 1], "2026-01-01T00:00:09.000Z info  x")) for number in (0, 1)
    )
    assert late - early == pytest.approx(2.0, abs=0.1)

"""The table of timers, from what the workers measured."""

import pytest

from benchmarks.timer import Run, rows


def table(alone, together):
    return {row.what: row for row in rows({"elastic": alone}, {"elastic": together}, 2)}


def test_the_median_is_of_all_round_trips():
    found = table(Run([[10.0, 30.0, 20.0]]), Run([[10.0, 20.0], [30.0, 60.0]], seconds=2.0))
    assert found["round trip, one worker, median"].values["elastic"] == 20.0
    assert found["round trip, 2 workers, median"].values["elastic"] == 25.0
    assert found["the same, of the slowest worker"].values["elastic"] == 45.0
    assert found["the same, 99 of 100 are faster"].values["elastic"] == 60.0
    assert found["round trips of all in a second"].values["elastic"] == 2.0
    assert all(row.met in (True, None) for row in found.values())


def test_slow_lost_and_failed_are_not_met():
    found = table(Run([[51.0]]), Run([[51.0], []], lost=1, errors=["BlockingIOError: full"], seconds=1.0))
    assert {what for what, row in found.items() if row.met is False} == {
        "round trip, one worker, median",
        "round trip, 2 workers, median",
        "requests lost",
        "workers that failed",
    }
    assert found["workers that failed"].notes == {"elastic": "BlockingIOError: full"}


@pytest.mark.parametrize("took", [[], [[]]])
def test_workers_that_measured_nothing(took):
    found = table(Run(took), Run(took))
    assert found["round trip, 2 workers, median"].met is None

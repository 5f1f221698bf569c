"""Rows from tries of recovery, of losses, and of a job whose worker is killed."""

from __future__ import annotations

import pytest

from benchmarks import digits_kill, losses, recovery
from benchmarks.recovery import SCENARIOS, Try

pytestmark = pytest.mark.unit


def tries(*outcomes):
    """Tries with these outcomes; a number is a recovery after that many seconds."""
    return [
        Try(one) if isinstance(one, str) else Try("recovered", recovery_s=one, workers_s=one / 2) for one in outcomes
    ]


def first_row(ours, theirs, name="worker", label=""):
    return recovery.rows(SCENARIOS[name], {"elastic": ours, "torchrun": theirs}, 60, label)[0]


def test_failed_and_hung_tries_are_counted():
    row = first_row(tries(1.0), tries(4.0, "failed", "hung", "trained on unaware", "hung"))
    assert str(row.tries["torchrun"]) == "median of 1 of 5 tries, worst 4"
    assert row.notes == {"torchrun": "1 failed, 2 hung (60 s), 1 trained on unaware (60 s)"}


def test_our_hung_try_misses_the_target():
    assert first_row(tries(1.0, "hung"), tries(4.0)).met is False


def test_loss_row_counts_tries_of_each_world():
    made = losses.Figures([losses.Try("recovered", 4.0, 1.0), losses.Try("hung")])
    row = losses.rows(losses.LOSSES["machine"], {"torchrun": made}, 60)[0]
    assert (str(row.tries["torchrun"]), row.notes) == (
        "median of 1 of 2 tries, worst 4",
        {"torchrun": "1 hung (60 s)"},
    )


def test_wait_for_the_next_epoch_counts_runs_that_hung():
    def run(outcome, seconds):
        restart = digits_kill.Restart(0.1, 0.2, seconds)
        return digits_kill.Run(outcome, digits_kill.Plan(0, 1, 0.5), restart, 1, 0, 9.0, "")

    report = digits_kill.summarise(
        recovery.Report("digits_kill", {}), {"torchrun": [run("recovered", 3.0), run("hung", None)]}, {}
    )
    row = next(row for row in report.rows if row.what == "digits: kill to next epoch line")
    assert (str(row.tries["torchrun"]), row.notes) == ("median of 1 of 2 tries, worst 3", {"torchrun": "1 hung"})

"""What a try of the benchmark of hangs comes to, and the rows made of many."""

from __future__ import annotations

from benchmarks import hangs
from benchmarks.hangs import Try


def healed(killed=0.01, back=0.06):
    return Try("", killed, back)


def test_the_rows_tell_how_many_healed_and_how_soon():
    tries = {"elastic": [healed(0.01), healed(0.03), healed(0.02)], "torchrun": [Try("no further round", 0.1), Try()]}
    share, median, slowest, back, _ = hangs.rows("timer", tries)
    assert (share.values, share.met) == ({"elastic": 100.0, "torchrun": 0.0}, True)
    assert share.notes == {
        "elastic": "3 of 3 healed",
        "torchrun": "0 of 2 healed, 1: no further round, 1: no worker came to hang",
    }
    assert (median.values["elastic"], slowest.values["elastic"]) == (0.02, 0.03)
    assert back.values == {"elastic": 0.06, "torchrun": None}


def test_one_that_did_not_heal_is_a_target_that_is_not_met():
    assert hangs.rows("progress", {"elastic": [healed(), Try("it was not killed")]})[0].met is False
    assert hangs.rows("timer", {"torchrun": [Try()]})[0].met is None


def test_lines_of_workers_are_facts_and_others_are_not():
    assert hangs.fact('{"hangs": 7, "due": 1.5}\n') == {"hangs": 7, "due": 1.5}
    assert hangs.fact("2026-01-02 info round formed\n") == {}


def test_the_jobs_flags():
    timer = hangs.command("elastic", ["elastic", "run"], "timer", 2.0)
    assert "--watchdog=file" in timer and timer[-3:] == ["elastic", "timer", "2.0"]
    assert "--hang-timeout=2.0" in hangs.command("elastic", ["elastic", "run"], "progress", 2.0)
    assert "--watchdog=file" not in hangs.command("torchrun", ["torchrun"], "timer", 2.0)


def test_in_time_is_within_a_second_of_the_deadline_and_not_before_it():
    assert [hangs.in_time(healed(after)) for after in (0.0, 1.0, 1.01, -0.01)] == [True, True, False, False]
    assert not hangs.in_time(Try())

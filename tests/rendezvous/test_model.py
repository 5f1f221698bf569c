from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.rendezvous import model
from elastic_core.rendezvous.model import (
    Cause,
    Closed,
    RoundId,
    State,
    closed,
    counted_failure,
    drained,
    ended,
    failed,
    formed,
    left,
    recovered,
    refused,
    succeeded,
    why,
)


@pytest.fixture
def running(say):
    return say.state("ab")


def test_the_first_round(say):
    state = formed(State(), say.seats("ab"), 3, "all are there", {"a", "b"})
    assert (state.round.number, state.open, state.max_restarts, state.reason) == (1, True, 3, "all are there")
    assert (state.rank("a"), state.rank("b"), state.rank("c")) == (0, 1, None)
    assert state.seats[1].member.node == "b"
    assert (state.busy, state.names("ca")) == (("a", "b"), ("a",))


def test_a_round_forgets_what_belonged_to_the_one_before(say):
    before = ended(replace(say.state("ab"), done=("a",)), Cause.LOST, "b", "silent", ("b",))
    state = formed(before, say.seats("c"), 3, "", {"a", "b", "c"})
    assert (state.gone, state.done) == ((), ())
    assert state.end.cause is Cause.LOST


def test_what_is_known_of_nodes_without_an_entry_is_forgotten(say):
    before = State(round=RoundId(4), seats=say.seats("ab"), draining=("a", "x"), refused=(("y", "why"), ("b", "why")))
    state = formed(before, say.seats("c"), 3, "", {"b", "c", "a"})
    assert (state.draining, state.refused) == (("a",), (("b", "why"),))


def test_a_drain_is_kept_for_a_member_that_is_only_cut_off(say):
    """It comes back after a round without it, and goes then. One that does not is forgotten with the round after."""
    drained = replace(say.state("ab", open=False), draining=("b",))
    without = formed(drained, say.seats("a"), 3, "", {"a"})
    assert without.draining == ("b",)
    assert formed(replace(without, open=False), say.seats("a"), 3, "", {"a"}).draining == ()


def test_a_round_ends_once(running):
    state = ended(running, Cause.LOST, "b", "silent", ("b",))
    assert (state.open, state.gone, state.end.cause, state.end.reason) == (False, ("b",), Cause.LOST, "silent")
    assert ended(state, Cause.JOINED, "c", "new") is state
    assert ended(state, Cause.LOST, "b", "silent", ("b",)) is state
    both = ended(state, Cause.LEFT, "a", "goes", ("a",))
    assert (both.gone, both.end) == (("b", "a"), state.end)


# -- failures and their price


@pytest.mark.parametrize("runs", [True, False])
def test_a_node_that_no_longer_runs_overrules_no_round_that_does(say, runs):
    known = say.state("ab", round=RoundId(2, "a.2"), restarts=1, origin="a")
    found = say.state("cd", round=RoundId(1, "c.1"), origin="c")
    merged = recovered(known, found, runs)
    assert (merged.round, merged.restarts) == ((known if runs else found).round, 1)


@pytest.mark.parametrize("runs", [True, False])
def test_older_data_of_the_same_job_is_overruled(say, runs):
    known = ended(say.state("ab", round=RoundId(2, "a.2"), restarts=1, origin="a"), Cause.FAILURE, "a", "why")
    found = say.state("ab", round=RoundId(1, "a.1"), origin="a")
    assert recovered(known, found, runs) is known


def test_a_certain_failure_uses_a_restart(say, running):
    state = failed(running, RoundId(1), say.report("a"))
    assert (state.open, state.restarts, state.end.counted, state.end.by) == (False, 1, True, "a")
    assert state.end.reason == "rank 0 on a: exit code 1"


def test_reports_of_several_nodes_use_one_restart_together(say, running):
    state = failed(running, RoundId(1), say.report("a"))
    state = failed(state, RoundId(1), say.report("b", rank=1))
    assert (state.restarts, len(state.end.reports)) == (1, 2)
    assert state.end.by == "a"


def test_the_second_report_of_a_node_takes_the_place_of_its_first(say, running):
    state = failed(running, RoundId(1), say.report("a", certain=False))
    assert (state.restarts, state.end.counted) == (0, False)
    state = failed(state, RoundId(1), say.report("a", message="ValueError"))
    assert [report.certain for report in state.end.reports] == [True]
    assert state.restarts == 1


def test_what_is_certain_gives_the_reason(say, running):
    state = failed(running, RoundId(1), say.report("a", certain=False))
    state = failed(state, RoundId(1), say.report("b", rank=1, reason="killed by SIGKILL"))
    assert (state.end.by, state.end.reason) == ("b", "rank 1 on b: killed by SIGKILL")


def test_a_failure_that_seemed_to_follow_from_a_loss_may_turn_out_to_be_certain(say, running):
    state = failed(running, RoundId(1), say.report("a", certain=False))
    lost = model.followed(state, Cause.LOST, "b", "b was cut off")
    assert (lost.end.cause, failed(lost, RoundId(1), say.report("a", certain=False, message="again"))) == (
        Cause.LOST,
        lost,
    )
    state = failed(lost, RoundId(1), say.report("a", message="ValueError"))
    assert (state.end.cause, state.end.by, state.restarts) == (Cause.FAILURE, "a", 1)


def test_without_a_restart_left_a_failure_closes_the_job(say, running):
    state = failed(replace(running, restarts=3), RoundId(1), say.report("a"))
    why = "rank 0 on a: exit code 1; all 3 restarts have been used (--max-restarts=3)"
    assert state.closed == Closed("a", why, False)
    state = failed(replace(running, max_restarts=0), RoundId(1), say.report("a"))
    assert "no restart is allowed (--max-restarts=0)" in state.closed.reason


@pytest.mark.parametrize("certain", [True, False])
def test_what_a_restart_cannot_cure_closes_the_job(say, running, certain):
    state = failed(running, RoundId(1), say.report("a", certain, curable=False))
    assert state.closed.reason.endswith("a restart would not help")
    assert state.restarts == 0


def test_also_when_another_failure_was_counted_before(say, running):
    state = failed(running, RoundId(1), say.report("a"))
    state = failed(state, RoundId(1), say.report("b", curable=False))
    assert state.closed is not None


def test_alone_in_a_round_every_failure_is_certain(say):
    assert failed(say.state("a"), RoundId(1), say.report("a", certain=False)).restarts == 1


def test_what_fails_in_a_round_that_is_over_for_another_cause_is_not_told(say, running):
    state = ended(running, Cause.LOST, "b", "silent", ("b",))
    assert failed(state, RoundId(1), say.report("a")) is state


def test_a_report_about_another_round_or_by_a_stranger_is_nothing(say, running):
    assert failed(running, RoundId(2), say.report("a")) is running
    assert failed(running, RoundId(1), say.report("x")) is running


def test_a_failure_in_words(say):
    assert why(say.report("a", rank=3, reason="killed by SIGKILL")) == "rank 3 on a: killed by SIGKILL"
    assert why(say.report("a", caused_by=5)) == "workers of a failed"


# -- leaving, draining, closing


def test_who_leaves_ends_the_round(running):
    state = left(running, "b", "SIGTERM")
    assert (state.open, state.gone, state.end.cause, state.end.by) == (False, ("b",), Cause.LEFT, "b")
    assert left(state, "b", "SIGTERM") is state
    assert left(running, "x", "SIGTERM") is running


def test_who_leaves_after_its_workers_succeeded_does_not(running):
    state = succeeded(running, ["b"], RoundId(1))
    assert (state.open, state.done) == (True, ("b",))
    assert succeeded(state, ["b"], RoundId(1)) is state
    assert succeeded(state, ["b", "a"], RoundId(1)).done == ("b", "a")
    assert left(state, "b", "SIGTERM") is state
    assert state.busy == ("a",)
    assert succeeded(running, ["b"], RoundId(2)) is running
    assert succeeded(running, ["x"], RoundId(1)) is running


def test_draining_is_noted_and_ends_nothing_by_itself(running):
    state = drained(running, "b")
    assert (state.open, state.draining) == (True, ("b",))
    assert drained(state, "b") is state
    gone = left(state, "b", "asked to")
    assert (gone.open, gone.end.cause, gone.end.reason) == (False, Cause.DRAINED, "b is drained")


def test_nothing_happens_after_closing(say, running):
    state = closed(running, "a", "done", True)
    for after in (
        ended(state, Cause.LOST, "b", "silent", ("b",)),
        failed(state, RoundId(1), say.report("a")),
        left(state, "a", "goes"),
        succeeded(state, ["a"], RoundId(1)),
        drained(state, "a"),
        refused(state, [("a", "why")]),
        counted_failure(state),
    ):
        assert after is state


# -- any order of events


EVENTS = {
    "fail": lambda state, key, say: failed(state, state.round, say.report(key)),
    "fail, uncertain": lambda state, key, say: failed(state, state.round, say.report(key, False)),
    "lose": lambda state, key, say: ended(state, Cause.LOST, key, "", (key,)),
    "leave": lambda state, key, say: left(state, key, ""),
    "leave, done": lambda state, key, say: succeeded(state, [key], state.round),
    "drain": lambda state, key, say: drained(state, key),
    "join": lambda state, key, say: ended(state, Cause.JOINED, key, ""),
    "form": lambda state, key, say: (
        state if state.open or state.closed else formed(state, say.seats(key), 2, "", set("abc"))
    ),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.sampled_from("abc")), max_size=30))
def test_whatever_happens_twice_happens_once_and_the_budget_holds(events):
    from elastic_core.interfaces.node import Member
    from elastic_core.rendezvous.model import Report
    from elastic_core.rendezvous.seats import Seat

    class Say:
        @staticmethod
        def report(key, certain=True):
            return Report(key, key, (), certain)

        @staticmethod
        def seats(key):
            return tuple(Seat(k, Member(k, "", "", "default", 1)) for k in sorted({"a", key}))

    state, failures = formed(State(), Say.seats("b"), 2, "", set("abc")), set()
    for name, key in events:
        event = EVENTS[name]
        after = event(state, key, Say)
        if name != "form":
            assert event(after, key, Say) is after
        assert after.round >= state.round
        assert state.restarts <= after.restarts <= 2
        assert not set(after.gone) & set(after.done)
        assert not (after.open and (after.gone or after.closed))
        failures |= {after.round} if after.end and after.end.cause is Cause.FAILURE and not after.open else set()
        assert after.restarts <= len(failures)
        state = after


def test_a_store_that_knows_less_gets_back_what_was_known(say):
    known = replace(say.state("ab"), open=False, restarts=1, serial=2)
    assert recovered(known, State()) is known
    assert recovered(known, replace(say.state("ab"), serial=5)) is known  # over is over
    later_on = replace(known, serial=3)
    assert recovered(known, later_on) is later_on
    assert recovered(known, known) is known


def test_what_must_never_be_taken_back_holds_in_a_store_that_went_on_without_it(say):
    known = replace(closed(say.state("ab"), "a", "enough", succeeded=False), restarts=2)
    found = say.state("b", round=2, restarts=1)
    merged = recovered(known, found)
    assert (merged.round.number, merged.open, merged.closed, merged.restarts) == (2, False, known.closed, 2)
    assert recovered(merged, found) == merged
    over = closed(found, "b", "done", succeeded=True)
    assert recovered(known, over) is over


@pytest.mark.parametrize(
    ("of", "changes", "neighbour"),
    [
        ("a", {}, "b"),
        ("d", {}, "a"),
        ("a", {"gone": ("b",)}, "c"),
        ("a", {"gone": ("c",), "done": ("b",)}, "d"),
        ("c", {"gone": ("d",), "open": False}, "a"),
        ("b", {"gone": ("b",), "open": False}, "c"),
        ("a", {"done": ("b", "c", "d")}, None),
        ("a", {"closed": Closed("b", "why", True)}, None),
        ("e", {}, None),
    ],
)
def test_each_member_watches_the_next_one_that_counts(say, of, changes, neighbour):
    found = say.state("abcd", **changes).neighbour(of)
    assert (found and found.key) == neighbour

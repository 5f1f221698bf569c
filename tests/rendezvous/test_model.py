from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.interfaces.node import Member, Node
from elastic_core.rendezvous import model
from elastic_core.rendezvous.model import (
    NO_ROUND,
    Cause,
    Closed,
    Entry,
    Report,
    RoundId,
    Seat,
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
def running(build):
    return build.state("ab")


def test_members_of_a_round_can_be_pickled(build):
    """Plugins receive them, and may pass them to other processes."""
    members = build.seats("ab").members
    assert list(pickle.loads(pickle.dumps(members))) == list(members)


def test_first_round_has_members_bounds_and_reason(build):
    state = formed(State(), build.seats("ab"), 3, "all are there", {"a", "b"})
    assert (state.round.number, state.open, state.max_restarts, state.reason) == (1, True, 3, "all are there")
    assert (state.rank("a"), state.rank("b"), state.rank("c")) == (0, 1, None)
    assert state.seats[1].member.node == "b"
    assert (state.busy, state.names("ca")) == (("a", "b"), ("a",))


def test_new_round_forgets_the_losses_of_the_last(build):
    before = ended(replace(build.state("ab"), done=("a",)), Cause.LOST, "b", "silent", ("b",))
    state = formed(before, build.seats("c"), 3, "", {"a", "b", "c"})
    assert (state.gone, state.done) == ((), ())
    assert state.end.cause is Cause.LOST


def test_new_round_forgets_nodes_without_an_entry(build):
    before = State(
        round=RoundId(4), seats=build.seats("ab"), draining={"a": 5.0, "x": None}, refused=(("y", "why"), ("b", "why"))
    )
    state = formed(before, build.seats("c"), 3, "", {"b", "c", "a"})
    assert (state.draining, state.refused) == ({"a": 5.0}, (("b", "why"),))


def test_drain_of_a_cut_off_member_lasts_one_round(build):
    """It rejoins after a round without it, and leaves then. If it does not, the round after that forgets the drain."""
    drained = replace(build.state("ab", open=False), draining={"b": None})
    without = formed(drained, build.seats("a"), 3, "", {"a"})
    assert without.draining == {"b": None}
    assert formed(replace(without, open=False), build.seats("a"), 3, "", {"a"}).draining == {}


def test_round_ends_once(running):
    state = ended(running, Cause.LOST, "b", "silent", ("b",))
    assert (state.open, state.gone, state.end.cause, state.end.reason) == (False, ("b",), Cause.LOST, "silent")
    assert ended(state, Cause.JOINED, "c", "new") is state
    assert ended(state, Cause.LOST, "b", "silent", ("b",)) is state
    both = ended(state, Cause.LEFT, "a", "goes", ("a",))
    assert (both.gone, both.end) == (("b", "a"), state.end)


# -- failures and the restarts that they cost


@pytest.mark.parametrize("runs", [True, False])
def test_only_a_running_node_overrules_a_running_round(build, runs):
    known = build.state("ab", round=RoundId(2, "a.2"), restarts=1, origin="a")
    found = build.state("cd", round=RoundId(1, "c.1"), origin="c")
    merged = recovered(known, found, runs)
    assert (merged.round, merged.restarts) == ((known if runs else found).round, 1)


@pytest.mark.parametrize("runs", [True, False])
def test_older_data_of_the_same_job_is_overruled(build, runs):
    known = ended(build.state("ab", round=RoundId(2, "a.2"), restarts=1, origin="a"), Cause.FAILURE, "a", "why")
    found = build.state("ab", round=RoundId(1, "a.1"), origin="a")
    assert recovered(known, found, runs) is known


def test_certain_failure_uses_a_restart(build, running):
    state = failed(running, RoundId(1), build.report("a"))
    assert (state.open, state.restarts, state.end.counted, state.end.by) == (False, 1, True, "a")
    assert state.end.reason == "rank 0 on a: exit code 1"


def test_reports_of_several_nodes_use_one_restart(build, running):
    state = failed(running, RoundId(1), build.report("a"))
    state = failed(state, RoundId(1), build.report("b", rank=1))
    assert (state.restarts, len(state.end.reports)) == (1, 2)
    assert state.end.by == "a"


def test_second_report_of_a_node_replaces_its_first(build, running):
    state = failed(running, RoundId(1), build.report("a", certain=False))
    assert (state.restarts, state.end.counted) == (0, False)
    state = failed(state, RoundId(1), build.report("a", message="ValueError"))
    assert [report.certain for report in state.end.reports] == [True]
    assert state.restarts == 1


def test_reason_is_that_of_a_certain_failure(build, running):
    state = failed(running, RoundId(1), build.report("a", certain=False))
    state = failed(state, RoundId(1), build.report("b", rank=1, reason="killed by SIGKILL"))
    assert (state.end.by, state.end.reason) == ("b", "rank 1 on b: killed by SIGKILL")


def test_failure_after_a_loss_may_become_certain(build, running):
    state = failed(running, RoundId(1), build.report("a", certain=False))
    lost = model.followed(state, Cause.LOST, "b", "b was cut off")
    assert (lost.end.cause, failed(lost, RoundId(1), build.report("a", certain=False, message="again"))) == (
        Cause.LOST,
        lost,
    )
    state = failed(lost, RoundId(1), build.report("a", message="ValueError"))
    assert (state.end.cause, state.end.by, state.restarts) == (Cause.FAILURE, "a", 1)


def test_failure_without_restarts_left_closes_the_job(build, running):
    state = failed(replace(running, restarts=3), RoundId(1), build.report("a"))
    reason = "rank 0 on a: exit code 1; all 3 restarts have been used (--max-restarts=3)"
    assert state.closed == Closed("a", reason, False)
    state = failed(replace(running, max_restarts=0), RoundId(1), build.report("a"))
    assert "no restart is allowed (--max-restarts=0)" in state.closed.reason


@pytest.mark.parametrize("certain", [True, False])
def test_incurable_failure_closes_the_job(build, running, certain):
    state = failed(running, RoundId(1), build.report("a", certain, curable=False))
    assert state.closed.reason.endswith("a restart would not help")
    assert state.restarts == 0


def test_incurable_failure_closes_job_after_another_failure(build, running):
    state = failed(running, RoundId(1), build.report("a"))
    state = failed(state, RoundId(1), build.report("b", curable=False))
    assert state.closed is not None


def test_single_members_failure_is_certain(build):
    assert failed(build.state("a"), RoundId(1), build.report("a", certain=False)).restarts == 1


def test_failure_after_a_loss_is_ignored(build, running):
    state = ended(running, Cause.LOST, "b", "silent", ("b",))
    assert failed(state, RoundId(1), build.report("a")) is state


def test_report_of_wrong_round_or_non_member_is_ignored(build, running):
    assert failed(running, RoundId(2), build.report("a")) is running
    assert failed(running, RoundId(1), build.report("x")) is running


def test_failure_text_names_rank_or_node(build):
    assert why(build.report("a", rank=3, reason="killed by SIGKILL")) == "rank 3 on a: killed by SIGKILL"
    assert why(build.report("a", caused_by=5)) == "workers of a failed"


# -- leaving, draining, closing


def test_leaving_member_ends_the_round(running):
    state = left(running, "b", "SIGTERM")
    assert (state.open, state.gone, state.end.cause, state.end.by) == (False, ("b",), Cause.LEFT, "b")
    assert left(state, "b", "SIGTERM") is state
    assert left(running, "x", "SIGTERM") is running


def test_leaving_after_success_keeps_the_round(running):
    state = succeeded(running, ["b"], RoundId(1))
    assert (state.open, state.done) == (True, ("b",))
    assert succeeded(state, ["b"], RoundId(1)) is state
    assert succeeded(state, ["b", "a"], RoundId(1)).done == ("b", "a")
    assert left(state, "b", "SIGTERM") is state
    assert state.busy == ("a",)
    assert succeeded(running, ["b"], RoundId(2)) is running
    assert succeeded(running, ["x"], RoundId(1)) is running


def test_draining_alone_does_not_end_the_round(running):
    state = drained(running, "b")
    assert (state.open, state.draining) == (True, {"b": None})
    assert drained(state, "b") is state
    gone = left(state, "b", "asked to")
    assert (gone.open, gone.end.cause, gone.end.reason) == (False, Cause.DRAINED, "b is drained")


def test_closed_state_never_changes(build, running):
    state = closed(running, "a", "done", True)
    for after in (
        ended(state, Cause.LOST, "b", "silent", ("b",)),
        failed(state, RoundId(1), build.report("a")),
        left(state, "a", "goes"),
        succeeded(state, ["a"], RoundId(1)),
        drained(state, "a"),
        refused(state, [("a", "why")]),
        counted_failure(state),
    ):
        assert after is state


# -- events in any order


def report(key, certain=True):
    return Report(key, key, (), certain)


def seats(key):
    return tuple(Seat(k, Member(k, "", "", "default", 1)) for k in sorted({"a", key}))


EVENTS = {
    "fail": lambda state, key: failed(state, state.round, report(key)),
    "fail, uncertain": lambda state, key: failed(state, state.round, report(key, False)),
    "lose": lambda state, key: ended(state, Cause.LOST, key, "", (key,)),
    "leave": lambda state, key: left(state, key, ""),
    "leave, done": lambda state, key: succeeded(state, [key], state.round),
    "drain": lambda state, key: drained(state, key),
    "join": lambda state, key: ended(state, Cause.JOINED, key, ""),
    "form": lambda state, key: state if state.open or state.closed else formed(state, seats(key), 2, "", set("abc")),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.sampled_from("abc")), max_size=30))
def test_repeated_events_change_nothing_within_the_budget(events):
    state, failures = formed(State(), seats("b"), 2, "", set("abc")), set()
    for name, key in events:
        event = EVENTS[name]
        after = event(state, key)
        if name != "form":
            assert event(after, key) is after
        assert after.round >= state.round
        assert state.restarts <= after.restarts <= 2
        assert not set(after.gone) & set(after.done)
        assert not (after.open and (after.gone or after.closed))
        failures |= {after.round} if after.end and after.end.cause is Cause.FAILURE and not after.open else set()
        assert after.restarts <= len(failures)
        state = after


def test_known_state_replaces_an_older_one(build):
    known = replace(build.state("ab"), open=False, restarts=1, serial=2)
    assert recovered(known, State()) is known
    assert recovered(known, replace(build.state("ab"), serial=5)) is known  # a round that has ended stays ended
    later_on = replace(known, serial=3)
    assert recovered(known, later_on) is later_on
    assert recovered(known, known) is known


def test_merged_state_keeps_closing_end_and_restarts(build):
    known = replace(closed(build.state("ab"), "a", "enough", succeeded=False), restarts=2)
    found = build.state("b", round=2, restarts=1)
    merged = recovered(known, found)
    assert (merged.round.number, merged.open, merged.closed, merged.restarts) == (2, False, known.closed, 2)
    assert recovered(merged, found) == merged
    over = closed(found, "b", "done", succeeded=True)
    assert recovered(known, over) is over


def test_orders_given_after_a_loss_of_data_are_kept(build):
    known = replace(build.state("ab"), serial=2)
    found = refused(drained(State(), "b/1", 9.0), [("c/1", "no")])
    merged = recovered(known, found)
    assert (merged.round, merged.draining, merged.refused) == (known.round, {"b/1": 9.0}, (("c/1", "no"),))
    assert recovered(merged, found) is merged


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
def test_each_member_watches_the_next_live_one(build, of, changes, neighbour):
    found = build.state("abcd", **changes).neighbour(of)
    assert (found and found.key) == neighbour


# -- entries


def test_entry_describes_the_node():
    node = Node("n7", "host7", "trainer", 8, rank_hint=2, max_restarts=3, labels={"rack": "b"})
    entry = Entry.of(node, "n7/1")
    assert (entry.key, entry.node, entry.host, entry.role) == ("n7/1", "n7", "host7", "trainer")
    assert (entry.local_world_size, entry.rank_hint, entry.max_restarts) == (8, 2, 3)
    assert entry.labels == {"rack": "b"}
    assert (entry.after, entry.waits, entry.done) == (NO_ROUND, True, NO_ROUND)
    assert (entry.address, entry.port) == ("", 0)


def test_entry_copies_labels():
    labels = {"rack": "b"}
    entry = Entry.of(Node("n7", labels=labels), "n7/1")
    labels["rack"] = "c"
    assert entry.labels == {"rack": "b"}


def test_seat_describes_the_member(build):
    entry = build.entry("n7/1", node="n7", host="h", address="10.0.0.7", port=4, local_world_size=8)
    assert entry.seat.member == Member("n7", "h", "10.0.0.7", "default", 8)

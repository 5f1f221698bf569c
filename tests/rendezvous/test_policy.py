from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.clock import LONG_AGO, Instant, later
from elastic_core.rendezvous.model import (
    Cause,
    End,
    Entry,
    Reported,
    RoundId,
    State,
    drained,
    ended,
    failed,
    formed,
    left,
    succeeded,
)
from elastic_core.rendezvous.policy import Wait, Write, decide, enough
from elastic_core.rendezvous.roster import ObservedEntry
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

NOW = Instant(100.0)


@pytest.fixture
def choose(say):
    """`decide`, by default with bounds 2:4."""

    def call(roster, state, enough_since=None, now=NOW, bounds=(2, 4), settled=LONG_AGO):
        return decide(roster, state, say.settings(*bounds), now, enough_since, settled)

    return call


def members(decision):
    assert isinstance(decision, Write)
    assert decision.state.open
    return "".join(seat.key for seat in decision.state.seats)


# -- a new job


def test_too_few_nodes_wait_without_limit(say, choose):
    decision = choose(say.roster("a"), State())
    assert decision == Wait("1 of 2 nodes joined", None, 1, 2)
    assert not enough(say.roster("a"), State(), say.settings(2))


def test_full_job_forms_immediately(say, choose):
    decision = choose(say.roster("abcd"), State())
    assert members(decision) == "abcd"
    assert (decision.state.round.number, decision.reason) == (1, "all 4 nodes have joined")
    assert (decision.state.min_nodes, decision.state.max_nodes) == (2, 4)


def test_enough_nodes_wait_for_the_last_call(say, choose):
    roster = say.roster("abc")
    assert enough(roster, State(), say.settings(2))
    decision = choose(roster, State(), enough_since=Instant(98.0))
    assert decision == Wait("3 nodes joined, waiting for the last call", Instant(103.0), 3, 4)
    assert members(choose(roster, State(), enough_since=Instant(95.0))) == "abc"
    assert choose(roster, State()).until == Instant(105.0)  # enough nodes since now


def test_newcomers_wait_for_the_lost_state(say, choose):
    """Otherwise the first node to host a new store would reset the restart count."""
    roster = (*say.roster("a"), *say.roster("bcd", after=11))
    decision = choose(roster, State(), enough_since=Instant(98.0), bounds=(1, 4))
    assert decision == Wait("1 nodes joined, waiting for the state that the store has lost", Instant(103.0), 1, 4)
    assert members(choose(roster, State(), enough_since=Instant(95.0), bounds=(1, 4))) == "a"  # not restored


def test_older_nodes_get_the_seats(say, choose):
    assert members(choose(say.roster("fedcba"), State())) == "cdef"  # ordered by host


def test_members_set_the_restart_budget(say, choose):
    roster = (say.seen("a", max_restarts=1), say.seen("b", max_restarts=3), say.seen("c", late=True, max_restarts=9))
    assert choose(roster, State(), bounds=(2, 2)).state.max_restarts == 3


# -- a round runs


@pytest.mark.parametrize("roster", ["late", "without an entry"])
def test_lost_member_ends_the_round(say, choose, roster):
    seen = say.roster("ab", late="b") if roster == "late" else say.roster("a")
    decision = choose(seen, say.state("ab"))
    assert decision.reason == f"lost b: {'no heartbeat for 5 s' if roster == 'late' else 'its entry has disappeared'}"
    assert (decision.state.open, decision.state.gone, decision.state.end.cause) == (False, ("b",), Cause.LOST)


def test_newcomer_ends_a_round_with_free_seats(say, choose):
    decision = choose(say.roster("abc", after=1), say.state("ab"))
    assert (decision.state.end.cause, decision.reason) == (Cause.JOINED, "c wants to join")
    assert choose(say.roster("abcd", after=1), say.state("ab")).reason == "c, d want to join"
    assert isinstance(choose(say.roster("abc", after=1), say.state("ab"), bounds=(2, 2)), Wait)


@pytest.mark.parametrize("who", ["late", "drained", "refused", "of the past"])
def test_ineligible_node_does_not_end_the_round(say, choose, who):
    state = say.state("ab", round=2)
    late, after = "c" if who == "late" else "", 1 if who == "of the past" else 2
    roster = say.roster("abc", late=late, after=after)
    if who == "drained":
        state = replace(state, draining=("c",))
    elif who == "refused":
        state = replace(state, refused=(("c", "why"),))
    assert isinstance(choose(roster, state), Wait)


def test_job_closes_when_all_members_are_done(say, choose):
    roster = say.roster("ab", done=1)
    decision = choose(roster, say.state("ab"))
    assert (decision.state.closed.succeeded, decision.reason) == (True, "every worker succeeded")


def test_finished_member_is_not_lost(say, choose):
    """Nor when its entry is dropped, because the state remembers the success."""
    roster = (say.seen("a"), say.seen("b", late=True, done=1))
    decision = choose(roster, say.state("ab"))
    assert (decision.reason, decision.state.done, decision.state.open) == ("1 of 2 nodes are done", ("b",), True)
    assert isinstance(choose(roster, decision.state), Wait)
    assert isinstance(choose(say.roster("a"), decision.state), Wait)


def test_success_is_recorded_with_a_loss(say, choose):
    decision = choose((say.seen("a", done=1), say.seen("b", late=True), say.seen("c")), say.state("abc"))
    assert (decision.state.end.cause, decision.state.gone, decision.state.done) == (Cause.LOST, ("b",), ("a",))


def test_drained_member_ends_the_round(say, choose):
    decision = choose(say.roster("ab"), drained(say.state("ab"), "b"))
    assert (decision.state.end.cause, decision.reason, decision.state.gone) == (Cause.DRAINED, "b is drained", ())


def test_drained_finished_member_disturbs_no_worker(say, choose):
    state = drained(succeeded(say.state("ab"), ["b"], RoundId(1)), "b")
    assert isinstance(choose((say.seen("a"), say.seen("b", done=1)), state), Wait)
    assert isinstance(choose(say.roster("a"), state), Wait)


def test_newcomer_waits_once_a_member_is_done(say, choose):
    roster = (say.seen("a"), say.seen("b", done=1), say.seen("c"))
    assert choose(roster, say.state("ab")).state.open
    assert isinstance(choose((say.seen("a"), say.seen("c")), succeeded(say.state("ab"), ["b"], RoundId(1))), Wait)


# -- the next round


def test_next_round_forms_when_all_members_are_back(say, choose):
    state = ended(say.state("ab"), Cause.LOST, "c", "silent")
    decision = choose(say.roster("ab", after=1), state)
    assert (members(decision), decision.state.round.number, decision.reason) == ("ab", 2, "all members have rejoined")


def test_live_member_is_awaited(say, choose):
    state = ended(say.state("abc"), Cause.JOINED, "d", "")
    roster = (say.seen("a", after=1), say.seen("b", after=1), say.seen("c", after=0))
    decision = choose(roster, state, enough_since=Instant(50.0))
    assert decision == Wait("2 nodes joined, waiting for c to rejoin", Instant(110.0), 2, 4, ("c",))
    decision = choose(roster, state, enough_since=Instant(40.0))
    assert (members(decision), decision.reason) == ("ab", "c did not rejoin in time")


def test_lost_members_are_not_awaited(say, choose):
    state = ended(say.state("abcd"), Cause.LOST, "b", "", ("b",))
    roster = (say.seen("a", after=1), say.seen("b", late=True), say.seen("c", after=1))
    assert members(choose(roster, state)) == "ac"


def test_lost_member_is_awaited_until_its_workers_stop(say, choose):
    state = ended(say.state("ab"), Cause.LOST, "b", "", ("b",))
    decision = choose((say.seen("a", after=1), say.seen("b")), state)
    assert isinstance(decision, Wait)
    assert decision.missing == ("b",)
    assert members(choose(say.roster("ab", after=1), state)) == "ab"


def test_drained_member_is_awaited_until_its_workers_stop(say, choose):
    state = drained(ended(say.state("abc"), Cause.DRAINED, "b", ""), "b")
    roster = (say.seen("a", after=1), say.seen("b", stop_timeout=30.0), say.seen("c", after=1))
    decision = choose(roster, state)
    assert isinstance(decision, Wait)
    assert decision.missing == ("b",)
    assert members(choose((roster[0], roster[2]), left(state, "b", "it ends"))) == "ac"


def test_lost_member_that_returned_gets_a_seat(say, choose):
    state = ended(say.state("ab"), Cause.LOST, "b", "", ("b",))
    assert members(choose(say.roster("ab", after=1), state)) == "ab"


def test_members_come_before_older_waiting_nodes(say, choose):
    state = ended(say.state("bc"), Cause.LEFT, "c", "")
    roster = (say.seen("a"), say.seen("b", after=1), say.seen("c", after=1))
    assert members(choose(roster, state, bounds=(2, 2))) == "bc"


def test_spare_does_not_take_a_returning_members_seat(say, choose):
    """Spares are ready as soon as a round ends; members must first learn of it and stop their workers."""
    state = ended(say.state("ab"), Cause.LOST, "a", "", ("a",))
    roster = (say.seen("b", stop_timeout=30.0), say.seen("c", after=1), say.seen("d", after=1))
    decision = choose(roster, state, bounds=(2, 2), enough_since=NOW)
    assert (decision.reason, decision.until) == ("2 nodes joined, waiting for b to rejoin", Instant(135.0))
    back = say.roster("bcd", after=1)
    assert members(choose(back, state, bounds=(2, 2), enough_since=NOW)) == "bc"
    assert members(choose(roster, state, bounds=(2, 2), enough_since=Instant(65.0))) == "cd"


def test_member_is_awaited_for_its_stop_timeout(say, choose):
    state = ended(say.state("ab"), Cause.LEFT, "c", "")
    roster = (say.seen("a", after=1), say.seen("b", stop_timeout=90.0), say.seen("c", after=1))
    assert choose(roster, state, enough_since=NOW, bounds=(2, 3)).until == Instant(195.0)
    assert choose(roster, state, enough_since=NOW, bounds=(2, 2)).until == Instant(195.0)


def test_last_call_applies_if_no_member_is_left(say, choose):
    state = ended(say.state("ab"), Cause.LOST, "a, b", "", ("a", "b"))
    decision = choose(say.roster("cd", after=1), state, enough_since=NOW)
    assert (decision.reason, decision.until) == ("2 nodes joined, waiting for the last call", Instant(105.0))
    assert members(choose(say.roster("cd", after=1), state, enough_since=Instant(95.0))) == "cd"


# -- failures that nobody was certain about


@pytest.fixture
def uncertain(say):
    return failed(say.state("ab"), RoundId(1), say.report("a", certain=False))


def test_uncertain_failure_with_all_back_costs_a_restart(say, choose, uncertain):
    decision = choose(say.roster("ab", after=1), uncertain)
    assert (decision.state.restarts, decision.state.round.number, decision.state.end.counted) == (1, 2, True)


def test_uncertain_failure_without_restarts_closes_the_job(say, choose, uncertain):
    decision = choose(say.roster("ab", after=1), replace(uncertain, restarts=3))
    assert decision.state.closed is not None
    assert decision.state.round.number == 1


@pytest.mark.parametrize("loss", ["late", "no entry", "left", "left, and stops its workers"])
def test_uncertain_failure_with_a_loss_costs_no_restart(say, choose, uncertain, loss):
    roster = {
        "late": (say.seen("a", after=1), say.seen("b", late=True)),
        "no entry": (say.seen("a", after=1),),
        "left": (say.seen("a", after=1),),
        "left, and stops its workers": (say.seen("a", after=1), say.seen("b")),
    }[loss]
    state = ended(uncertain, Cause.LEFT, "b", "", ("b",)) if loss.startswith("left") else uncertain
    decision = choose(roster, state, enough_since=Instant(0.0), bounds=(1, 2))
    assert (members(decision), decision.state.restarts) == ("a", 0)
    end = decision.state.end
    cause, reason = {
        "late": (Cause.LOST, "lost b: no heartbeat for 5 s"),
        "no entry": (Cause.LOST, "lost b: its entry has disappeared"),
    }.get(loss, (Cause.LEFT, "b left"))
    assert (end.cause, end.by, end.reason) == (cause, "b", f"{reason}; what followed: {uncertain.end.reason}")
    assert (end.counted, end.reports) == (False, uncertain.end.reports)
    assert "b" in decision.reason


@pytest.mark.parametrize("loss", ["late", "no entry"])
def test_loss_is_recorded_even_if_no_round_can_form(say, choose, uncertain, loss):
    roster = (say.seen("a", after=1), *([say.seen("b", late=True)] if loss == "late" else []))
    decision = choose(roster, uncertain, bounds=(2, 2))
    assert (decision.state.open, decision.state.end.cause, decision.state.end.by) == (False, Cause.LOST, "b")
    assert decision.reason == decision.state.end.reason
    again = choose(roster, decision.state, bounds=(2, 2))
    assert isinstance(again, Wait)


@pytest.mark.parametrize("where", ["stops its workers", "has lost its entry with the store's data"])
def test_no_loss_is_recorded_before_it_is_certain(say, choose, uncertain, where):
    roster = (say.seen("a", after=1), *([say.seen("b")] if where == "stops its workers" else []))
    settled = Instant(0.0) if where == "stops its workers" else later(NOW, 1.0)
    assert isinstance(choose(roster, uncertain, bounds=(2, 2), settled=settled), Wait)


def test_slow_member_is_not_blamed(say, choose, uncertain):
    roster = (say.seen("a", after=1), say.seen("b"))
    decision = choose(roster, uncertain, enough_since=Instant(0.0), bounds=(1, 2))
    assert (members(decision), decision.state.restarts) == ("a", 1)


def test_reported_failures_become_one_write(say, choose):
    first = failed(say.state("abc"), RoundId(1), say.report("a", certain=False))
    entries = [
        say.seen(key, reported=Reported(RoundId(1), say.report(key, rank=rank))) for rank, key in enumerate("abc")
    ]
    decision = choose(tuple(entries), first)
    assert [report.key for report in decision.state.end.reports] == ["a", "b", "c"]
    assert (decision.state.round, decision.state.open, decision.state.restarts) == (RoundId(1), False, 1)
    assert isinstance(choose(tuple(entries), decision.state), Wait)


def test_failure_in_a_lost_round_is_ignored(say, choose):
    lost = Reported(RoundId(1, "h.1"), say.report("a"))
    running = say.state("ab", round=RoundId(1, "b.1"))
    assert isinstance(choose((say.seen("a", reported=lost), say.seen("b")), running), Wait)


# -- one name, two agents


def test_younger_agent_of_a_live_name_is_refused(say, choose):
    older, younger = say.seen("a/1", node="a", address="10.0.0.1"), say.seen("a/2", node="a", since=89.9)
    decision = choose((older, younger), State())
    assert decision.reason == "two agents have one name"
    assert decision.state.refused == (("a/2", "the name a is taken by a live agent at 10.0.0.1"),)
    assert isinstance(choose((older, replace(younger, since=Instant(91.0))), State()), Wait)
    assert isinstance(choose((replace(older, late=True), younger), State()), Wait)


def test_member_is_not_refused_for_a_returning_older_agent(say, choose):
    roster = (say.seen("a/1", node="a"), say.seen("a/2", node="a"), say.seen("b"))
    decision = choose(roster, say.state(["a/2", "b"]))
    assert [key for key, _ in decision.state.refused] == ["a/1"]
    state = formed(State(round=RoundId(4)), say.seats(["a/2", "b"]), 3, "", {"a/1", "a/2", "b"})
    assert [key for key, _ in choose(roster, state).state.refused] == ["a/1"]


def test_missing_entry_and_silence_have_different_reasons(say):
    decision = decide(say.roster("ac", late="c"), say.state("abc"), say.settings(), Instant(0.0), None)
    assert decision.reason == "lost c: no heartbeat for 5 s; lost b: its entry has disappeared"
    assert set(decision.state.gone) == {"b", "c"}


def over(say, keys, ended):
    return tuple(replace(say.seen(key), late=key in ended, ended=key in ended) for key in keys)


def test_member_whose_agent_ended_is_lost(say):
    decision = decide(over(say, "abc", "bc"), say.state("abc"), say.settings(), Instant(0.0), None)
    assert (decision.state.open, decision.state.gone) == (False, ("b", "c"))
    assert (decision.state.end.cause, decision.reason) == (Cause.LOST, "lost b, c: its agent has ended")


@pytest.mark.parametrize("cause", [Cause.FAILURE, Cause.LEFT])
def test_member_that_ends_during_gathering_is_gone(say, cause):
    state = say.state("abc", open=False, end=End(cause, "c", "why"))
    decision = decide(over(say, "abc", "b"), state, say.settings(), Instant(0.0), None)
    assert decision.state.gone == ("b",)
    lost = (Cause.LOST, "lost b: its agent has ended; what followed: why")
    assert (decision.state.end.cause, decision.state.end.reason) == (lost if cause is Cause.FAILURE else (cause, "why"))
    after = decide(over(say, "abc", "b"), decision.state, say.settings(), Instant(0.0), None)
    assert "b" not in getattr(after, "missing", ())


def test_after_outage_only_missing_entries_are_awaited(say):
    state, settings, until = say.state("abc"), say.settings(), Instant(5.0)
    decision = decide(say.roster("ab"), state, settings, Instant(4.0), None, until)
    assert (type(decision), decision.until) == (Wait, until)
    assert decide(say.roster("ab"), state, settings, until, None, until).state.gone == ("c",)
    silent = decide(say.roster("ab", late="b"), state, settings, Instant(4.0), None, until)
    assert (silent.state.gone, silent.reason) == (("b",), "lost b: no heartbeat for 5 s")


def test_after_outage_success_and_newcomers_do_not_wait(say):
    settings, now, until = say.settings(), Instant(0.0), Instant(5.0)
    over = decide(say.roster("ab", done=1), say.state("ab"), settings, now, None, until)
    assert over.state.closed.succeeded
    joined = decide(say.roster("abn", after=1), say.state("abc"), settings, now, None, until)
    assert joined.state.end.cause is Cause.JOINED
    again = decide(say.roster("ab", after=1), say.state("ab", open=False), settings, now, None, until)
    assert again.state.round.number == 2


def test_after_outage_members_without_entry_are_awaited(say):
    state = ended(say.state("abc"), Cause.FAILURE, "a", "")
    settings, until = say.settings(), Instant(5.0)
    decision = decide(say.roster("ab", after=1), state, settings, Instant(4.0), Instant(4.0), until)
    assert (decision.until, decision.missing) == (until, ("c",))
    assert members(decide(say.roster("ab", after=1), state, settings, until, Instant(4.0), until)) == "ab"


# -- nodes that cannot reach each other


def test_unreachable_node_gets_no_seat(say, choose):
    state = ended(say.state("abc"), Cause.FAILURE, "a", "connection closed by peer")
    roster = (
        say.seen("a", after=1, unreachable=("c",)),
        say.seen("b", after=1),
        say.seen("c", after=1, unreachable=("a",)),
    )
    decision = choose(roster, state)
    assert (members(decision), decision.reason) == ("ab", "c cannot be reached by the other nodes")


def test_node_that_reaches_none_is_left_out_first(say, choose):
    state = ended(say.state("abcd"), Cause.FAILURE, "a", "")
    roster = (
        say.seen("a", after=1, unreachable=("b", "c", "d")),
        *(say.seen(key, after=1, unreachable=("a",)) for key in "bcd"),
    )
    assert members(choose(roster, state)) == "bcd"


def test_unreachable_nodes_are_seated_if_needed(say, choose):
    state = ended(say.state("ab"), Cause.FAILURE, "a", "")
    assert members(choose(say.roster("ab", after=1, unreachable=("a", "b")), state)) == "ab"


def test_unreachable_newcomer_does_not_end_the_round(say, choose):
    cut_off = say.seen("c", after=1, unreachable=("a",))
    assert isinstance(choose((*say.roster("ab"), cut_off), say.state("ab")), Wait)
    assert choose((*say.roster("ab"), say.seen("c", after=1)), say.state("ab")).state.end.cause is Cause.JOINED


def dumb_meeting(entries, least):
    """The seated nodes, with all counts repeated after each node that is left out."""
    left = list(entries)
    while True:
        here = {entry.key for entry in left}
        pairs = [(entry.key, other) for entry in left for other in entry.unreachable if other in here]
        broken = Counter(key for pair in pairs for key in pair)
        if not broken:
            return "".join(entry.key for entry in (left if len(left) >= least else entries))
        left.remove([entry for entry in left if broken[entry.key] == max(broken.values())][-1])


@given(st.lists(st.sets(st.sampled_from("abcdefgh")), min_size=8, max_size=8), st.integers(1, 8))
def test_seats_match_the_reference_implementation(unreachable, least):
    cut_off = zip("abcdefgh", unreachable, strict=True)
    entries = [Entry(key, key, after=RoundId(1), unreachable=tuple(sorted(keys))) for key, keys in cut_off]
    state = ended(formed(State(), [entry.seat for entry in entries], 3, ""), Cause.LEFT, "a", "")
    roster = tuple(ObservedEntry(entry, late=False, since=NOW) for entry in entries)
    decision = decide(roster, state, RendezvousSettings("job", least, 8, RendezvousTimeout()), NOW, None)
    assert members(decision) == dumb_meeting(entries, least)


# -- many nodes: what takes time that grows with the square of their number holds up the leader's own beats. It takes
# minutes here; how long it takes as it is `benchmarks.paper` measures.


MANY = 10_000
at_once = pytest.mark.timeout(60)


@at_once
def test_round_of_thousands_forms_quickly(say, choose):
    roster = say.roster([f"node{number}" for number in range(MANY)])
    assert len(choose(roster, State(), bounds=(1, MANY)).state.seats) == MANY


@at_once
def test_partly_unreachable_thousands_form_quickly(say, choose):
    keys = [f"node{number}" for number in range(MANY)]
    apart = {key: tuple(keys[at + 1 : at + 32]) if at % 8 == 0 else () for at, key in enumerate(keys)}
    state = ended(say.state(keys), Cause.FAILURE, keys[0], "")
    roster = tuple(say.seen(key, after=1, unreachable=apart[key]) for key in keys)
    assert set(choose(roster, state, bounds=(1, MANY)).state.seats.keys) == {key for key in keys if not apart[key]}

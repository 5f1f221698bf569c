from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
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
from elastic_core.rendezvous.policy import PHRASES, Wait, Write, decide, enough, is_certain
from elastic_core.rendezvous.roster import ObservedEntry
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

NOW = Instant(100.0)


@pytest.fixture
def choose(build):
    """`decide`, by default with bounds 2:4."""

    def call(roster, state, enough_since=None, now=NOW, bounds=(2, 4), settled=LONG_AGO):
        return decide(roster, state, build.settings(*bounds), now, enough_since, settled)

    return call


def members(decision):
    assert isinstance(decision, Write)
    assert decision.state.open
    return "".join(seat.key for seat in decision.state.seats)


# -- a new job


def test_too_few_nodes_wait_without_limit(build, choose):
    decision = choose(build.roster("a"), State())
    assert decision == Wait("1 of 2 nodes joined", None, 1, 2)
    assert not enough(build.roster("a"), State(), build.settings(2))


def test_full_job_forms_immediately(build, choose):
    decision = choose(build.roster("abcd"), State())
    assert members(decision) == "abcd"
    assert (decision.state.round.number, decision.reason) == (1, "all 4 nodes have joined")
    assert (decision.state.min_nodes, decision.state.max_nodes) == (2, 4)


def test_enough_nodes_wait_for_the_last_call(build, choose):
    roster = build.roster("abc")
    assert enough(roster, State(), build.settings(2))
    decision = choose(roster, State(), enough_since=Instant(98.0))
    assert decision == Wait("3 nodes joined, waiting for the last call", Instant(103.0), 3, 4)
    assert members(choose(roster, State(), enough_since=Instant(95.0))) == "abc"
    assert choose(roster, State()).until == Instant(105.0)  # enough nodes since now


def test_newcomers_wait_for_the_lost_state(build, choose):
    """Otherwise the first node to host a new store would reset the restart count."""
    roster = (*build.roster("a"), *build.roster("bcd", after=11))
    decision = choose(roster, State(), enough_since=Instant(98.0), bounds=(1, 4))
    assert decision == Wait("1 nodes joined, waiting for the state that the store has lost", Instant(103.0), 1, 4)
    assert members(choose(roster, State(), enough_since=Instant(95.0), bounds=(1, 4))) == "a"  # not restored


def test_older_nodes_get_the_seats(build, choose):
    assert members(choose(build.roster("fedcba"), State())) == "cdef"  # ordered by host


def test_members_set_the_restart_budget(build, choose):
    late = build.seen("c", late=True, max_restarts=9)
    roster = (build.seen("a", max_restarts=1), build.seen("b", max_restarts=3), late)
    assert choose(roster, State(), bounds=(2, 2)).state.max_restarts == 3


# -- a round runs


def test_newcomer_ends_a_round_with_free_seats(build, choose):
    decision = choose(build.roster("abc", after=1), build.state("ab"))
    assert (decision.state.end.cause, decision.reason) == (Cause.JOINED, "c wants to join")
    assert choose(build.roster("abcd", after=1), build.state("ab")).reason == "c, d want to join"
    assert isinstance(choose(build.roster("abc", after=1), build.state("ab"), bounds=(2, 2)), Wait)


@pytest.mark.parametrize("who", ["late", "drained", "refused", "of the past"])
def test_ineligible_node_does_not_end_the_round(build, choose, who):
    state = build.state("ab", round=2)
    late, after = "c" if who == "late" else "", 1 if who == "of the past" else 2
    roster = build.roster("abc", late=late, after=after)
    if who == "drained":
        state = replace(state, draining={"c": None})
    elif who == "refused":
        state = replace(state, refused=(("c", "why"),))
    assert isinstance(choose(roster, state), Wait)


def test_job_closes_when_all_members_are_done(build, choose):
    roster = build.roster("ab", done=1)
    decision = choose(roster, build.state("ab"))
    assert (decision.state.closed.succeeded, decision.reason) == (True, "every worker succeeded")


def test_finished_member_is_not_lost(build, choose):
    """Nor when its entry is dropped, because the state remembers the success."""
    roster = (build.seen("a"), build.seen("b", late=True, done=1))
    decision = choose(roster, build.state("ab"))
    assert (decision.reason, decision.state.done, decision.state.open) == ("1 of 2 nodes are done", ("b",), True)
    assert isinstance(choose(roster, decision.state), Wait)
    assert isinstance(choose(build.roster("a"), decision.state), Wait)


def test_success_is_recorded_with_a_loss(build, choose):
    decision = choose((build.seen("a", done=1), build.seen("b", late=True), build.seen("c")), build.state("abc"))
    assert (decision.state.end.cause, decision.state.gone, decision.state.done) == (Cause.LOST, ("b",), ("a",))


def test_drained_member_ends_the_round(build, choose):
    decision = choose(build.roster("ab"), drained(build.state("ab"), "b"))
    assert (decision.state.end.cause, decision.reason, decision.state.gone) == (Cause.DRAINED, "b is drained", ())


def test_drained_finished_member_disturbs_no_worker(build, choose):
    state = drained(succeeded(build.state("ab"), ["b"], RoundId(1)), "b")
    assert isinstance(choose((build.seen("a"), build.seen("b", done=1)), state), Wait)
    assert isinstance(choose(build.roster("a"), state), Wait)


def test_newcomer_waits_once_a_member_is_done(build, choose):
    roster = (build.seen("a"), build.seen("b", done=1), build.seen("c"))
    assert choose(roster, build.state("ab")).state.open
    assert isinstance(choose((build.seen("a"), build.seen("c")), succeeded(build.state("ab"), ["b"], RoundId(1))), Wait)


# -- the next round


def test_next_round_forms_when_all_members_are_back(build, choose):
    state = ended(build.state("ab"), Cause.LOST, "c", "silent")
    decision = choose(build.roster("ab", after=1), state)
    assert (members(decision), decision.state.round.number, decision.reason) == ("ab", 2, "all members have rejoined")


def test_live_member_is_awaited(build, choose):
    state = ended(build.state("abc"), Cause.JOINED, "d", "")
    roster = (build.seen("a", after=1), build.seen("b", after=1), build.seen("c", after=0))
    decision = choose(roster, state, enough_since=Instant(50.0))
    assert decision == Wait("2 nodes joined, waiting for c to rejoin", Instant(110.0), 2, 4, ("c",))
    decision = choose(roster, state, enough_since=Instant(40.0))
    assert (members(decision), decision.reason) == ("ab", "c did not rejoin in time")


def test_lost_members_are_not_awaited(build, choose):
    state = ended(build.state("abcd"), Cause.LOST, "b", "", ("b",))
    roster = (build.seen("a", after=1), build.seen("b", late=True), build.seen("c", after=1))
    assert members(choose(roster, state)) == "ac"


def test_lost_member_is_awaited_until_its_workers_stop(build, choose):
    state = ended(build.state("ab"), Cause.LOST, "b", "", ("b",))
    decision = choose((build.seen("a", after=1), build.seen("b")), state)
    assert isinstance(decision, Wait)
    assert decision.missing == ("b",)
    assert members(choose(build.roster("ab", after=1), state)) == "ab"


def test_drained_member_is_awaited_until_its_workers_stop(build, choose):
    state = drained(ended(build.state("abc"), Cause.DRAINED, "b", ""), "b")
    roster = (build.seen("a", after=1), build.seen("b", stop_timeout=30.0), build.seen("c", after=1))
    decision = choose(roster, state)
    assert isinstance(decision, Wait)
    assert decision.missing == ("b",)
    assert members(choose((roster[0], roster[2]), left(state, "b", "it ends"))) == "ac"


def test_members_come_before_older_waiting_nodes(build, choose):
    state = ended(build.state("bc"), Cause.LEFT, "c", "")
    roster = (build.seen("a"), build.seen("b", after=1), build.seen("c", after=1))
    assert members(choose(roster, state, bounds=(2, 2))) == "bc"


def test_spare_does_not_take_a_returning_members_seat(build, choose):
    """Spares are ready as soon as a round ends; members must first learn of it and stop their workers."""
    state = ended(build.state("ab"), Cause.LOST, "a", "", ("a",))
    roster = (build.seen("b", stop_timeout=30.0), build.seen("c", after=1), build.seen("d", after=1))
    decision = choose(roster, state, bounds=(2, 2), enough_since=NOW)
    assert (decision.reason, decision.until) == ("2 nodes joined, waiting for b to rejoin", Instant(135.0))
    back = build.roster("bcd", after=1)
    assert members(choose(back, state, bounds=(2, 2), enough_since=NOW)) == "bc"
    assert members(choose(roster, state, bounds=(2, 2), enough_since=Instant(65.0))) == "cd"


def test_member_is_awaited_for_its_stop_timeout(build, choose):
    state = ended(build.state("ab"), Cause.LEFT, "c", "")
    roster = (build.seen("a", after=1), build.seen("b", stop_timeout=90.0), build.seen("c", after=1))
    assert choose(roster, state, enough_since=NOW, bounds=(2, 3)).until == Instant(195.0)
    assert choose(roster, state, enough_since=NOW, bounds=(2, 2)).until == Instant(195.0)


def test_last_call_applies_if_no_member_is_left(build, choose):
    state = ended(build.state("ab"), Cause.LOST, "a, b", "", ("a", "b"))
    decision = choose(build.roster("cd", after=1), state, enough_since=NOW)
    assert (decision.reason, decision.until) == ("2 nodes joined, waiting for the last call", Instant(105.0))
    assert members(choose(build.roster("cd", after=1), state, enough_since=Instant(95.0))) == "cd"


# -- uncertain failures


@pytest.fixture
def uncertain(build):
    return failed(build.state("ab"), RoundId(1), build.report("a", certain=False))


def test_uncertain_failure_with_all_back_costs_a_restart(build, choose, uncertain):
    decision = choose(build.roster("ab", after=1), uncertain)
    assert (decision.state.restarts, decision.state.round.number, decision.state.end.counted) == (1, 2, True)


def test_uncertain_failure_without_restarts_closes_the_job(build, choose, uncertain):
    decision = choose(build.roster("ab", after=1), replace(uncertain, restarts=3))
    assert decision.state.closed is not None
    assert decision.state.round.number == 1


@pytest.mark.parametrize("loss", ["late", "no entry", "left", "left, and stops its workers"])
def test_uncertain_failure_with_a_loss_costs_no_restart(build, choose, uncertain, loss):
    roster = {
        "late": (build.seen("a", after=1), build.seen("b", late=True)),
        "no entry": (build.seen("a", after=1),),
        "left": (build.seen("a", after=1),),
        "left, and stops its workers": (build.seen("a", after=1), build.seen("b")),
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
def test_loss_is_recorded_even_if_no_round_can_form(build, choose, uncertain, loss):
    roster = (build.seen("a", after=1), *([build.seen("b", late=True)] if loss == "late" else []))
    decision = choose(roster, uncertain, bounds=(2, 2))
    assert (decision.state.open, decision.state.end.cause, decision.state.end.by) == (False, Cause.LOST, "b")
    assert decision.reason == decision.state.end.reason
    again = choose(roster, decision.state, bounds=(2, 2))
    assert isinstance(again, Wait)


@pytest.mark.parametrize("where", ["stops its workers", "has lost its entry with the store's data"])
def test_no_loss_is_recorded_before_it_is_certain(build, choose, uncertain, where):
    roster = (build.seen("a", after=1), *([build.seen("b")] if where == "stops its workers" else []))
    settled = Instant(0.0) if where == "stops its workers" else later(NOW, 1.0)
    assert isinstance(choose(roster, uncertain, bounds=(2, 2), settled=settled), Wait)


def test_slow_member_is_not_blamed(build, choose, uncertain):
    roster = (build.seen("a", after=1), build.seen("b"))
    decision = choose(roster, uncertain, enough_since=Instant(0.0), bounds=(1, 2))
    assert (members(decision), decision.state.restarts) == ("a", 1)


def test_reported_failures_become_one_write(build, choose):
    first = failed(build.state("abc"), RoundId(1), build.report("a", certain=False))
    entries = [
        build.seen(key, reported=Reported(RoundId(1), build.report(key, rank=rank))) for rank, key in enumerate("abc")
    ]
    decision = choose(tuple(entries), first)
    assert [report.key for report in decision.state.end.reports] == ["a", "b", "c"]
    assert (decision.state.round, decision.state.open, decision.state.restarts) == (RoundId(1), False, 1)
    assert isinstance(choose(tuple(entries), decision.state), Wait)


def test_failure_in_a_lost_round_is_ignored(build, choose):
    lost = Reported(RoundId(1, "h.1"), build.report("a"))
    running = build.state("ab", round=RoundId(1, "b.1"))
    assert isinstance(choose((build.seen("a", reported=lost), build.seen("b")), running), Wait)


# -- two agents of one name


def test_younger_agent_of_a_live_name_is_refused(build, choose):
    older, younger = build.seen("a/1", node="a", address="10.0.0.1"), build.seen("a/2", node="a", since=89.9)
    decision = choose((older, younger), State())
    assert decision.reason == "two agents have the same name"
    assert decision.state.refused == (("a/2", "the name a is taken by a live agent at 10.0.0.1"),)
    assert isinstance(choose((older, replace(younger, since=Instant(91.0))), State()), Wait)
    assert isinstance(choose((replace(older, late=True), younger), State()), Wait)


def test_member_is_not_refused_for_a_returning_older_agent(build, choose):
    roster = (build.seen("a/1", node="a"), build.seen("a/2", node="a"), build.seen("b"))
    decision = choose(roster, build.state(["a/2", "b"]))
    assert [key for key, _ in decision.state.refused] == ["a/1"]
    state = formed(State(round=RoundId(4)), build.seats(["a/2", "b"]), 3, "", {"a/1", "a/2", "b"})
    assert [key for key, _ in choose(roster, state).state.refused] == ["a/1"]


def test_missing_entry_and_silence_have_different_reasons(build):
    decision = decide(build.roster("ac", late="c"), build.state("abc"), build.settings(), Instant(0.0), None)
    assert decision.reason == "lost c: no heartbeat for 5 s; lost b: its entry has disappeared"
    assert (decision.state.open, decision.state.end.cause, set(decision.state.gone)) == (False, Cause.LOST, set("bc"))


def over(build, keys, ended):
    return tuple(replace(build.seen(key), late=key in ended, ended=key in ended) for key in keys)


def test_member_whose_agent_ended_is_lost(build):
    decision = decide(over(build, "abc", "bc"), build.state("abc"), build.settings(), Instant(0.0), None)
    assert (decision.state.open, decision.state.gone) == (False, ("b", "c"))
    assert (decision.state.end.cause, decision.reason) == (Cause.LOST, "lost b, c: its agent has ended")


@pytest.mark.parametrize("cause", [Cause.FAILURE, Cause.LEFT])
def test_member_that_ends_while_nodes_gather_is_removed(build, cause):
    state = build.state("abc", open=False, end=End(cause, "c", "why"))
    decision = decide(over(build, "abc", "b"), state, build.settings(), Instant(0.0), None)
    assert decision.state.gone == ("b",)
    lost = (Cause.LOST, "lost b: its agent has ended; what followed: why")
    assert (decision.state.end.cause, decision.state.end.reason) == (lost if cause is Cause.FAILURE else (cause, "why"))
    after = decide(over(build, "abc", "b"), decision.state, build.settings(), Instant(0.0), None)
    assert "b" not in getattr(after, "missing", ())


def test_after_outage_only_missing_entries_are_awaited(build):
    state, settings, until = build.state("abc"), build.settings(), Instant(5.0)
    decision = decide(build.roster("ab"), state, settings, Instant(4.0), None, until)
    assert (type(decision), decision.until) == (Wait, until)
    assert decide(build.roster("ab"), state, settings, until, None, until).state.gone == ("c",)
    silent = decide(build.roster("ab", late="b"), state, settings, Instant(4.0), None, until)
    assert (silent.state.gone, silent.reason) == (("b",), "lost b: no heartbeat for 5 s")


def test_after_outage_success_and_newcomers_do_not_wait(build):
    settings, now, until = build.settings(), Instant(0.0), Instant(5.0)
    over = decide(build.roster("ab", done=1), build.state("ab"), settings, now, None, until)
    assert over.state.closed.succeeded
    joined = decide(build.roster("abn", after=1), build.state("abc"), settings, now, None, until)
    assert joined.state.end.cause is Cause.JOINED
    again = decide(build.roster("ab", after=1), build.state("ab", open=False), settings, now, None, until)
    assert again.state.round.number == 2


def test_after_outage_members_without_entry_are_awaited(build):
    state = ended(build.state("abc"), Cause.FAILURE, "a", "")
    settings, until = build.settings(), Instant(5.0)
    decision = decide(build.roster("ab", after=1), state, settings, Instant(4.0), Instant(4.0), until)
    assert (decision.until, decision.missing) == (until, ("c",))
    assert members(decide(build.roster("ab", after=1), state, settings, until, Instant(4.0), until)) == "ab"


# -- nodes that cannot reach each other


def test_unreachable_node_gets_no_seat(build, choose):
    state = ended(build.state("abc"), Cause.FAILURE, "a", "connection closed by peer")
    roster = (
        build.seen("a", after=1, unreachable=("c",)),
        build.seen("b", after=1),
        build.seen("c", after=1, unreachable=("a",)),
    )
    decision = choose(roster, state)
    assert (members(decision), decision.reason) == ("ab", "c cannot be reached by the other nodes")


def test_unreachable_newcomer_does_not_end_the_round(build, choose):
    cut_off = build.seen("c", after=1, unreachable=("a",))
    assert isinstance(choose((*build.roster("ab"), cut_off), build.state("ab")), Wait)
    assert choose((*build.roster("ab"), build.seen("c", after=1)), build.state("ab")).state.end.cause is Cause.JOINED


def reference_members(entries, least):
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
@example([{"b", "c", "d"}, *([{"a"}] * 7)], 2)  # the node that reaches no other one is left out
@example([set("abcdefgh")] * 8, 2)  # no two nodes reach each other, but two are needed
def test_seats_match_the_reference_implementation(unreachable, least):
    cut_off = zip("abcdefgh", unreachable, strict=True)
    entries = [Entry(key, key, after=RoundId(1), unreachable=tuple(sorted(keys))) for key, keys in cut_off]
    state = ended(formed(State(), [entry.seat for entry in entries], 3, ""), Cause.LEFT, "a", "")
    roster = tuple(ObservedEntry(entry, late=False, since=NOW) for entry in entries)
    decision = decide(roster, state, RendezvousSettings("job", least, 8, RendezvousTimeout()), NOW, None)
    assert members(decision) == reference_members(entries, least)


# -- many nodes: work that grows with the square of their number would delay the leader's own heartbeats. It would take
# minutes here; `benchmarks.paper` measures how long it really takes.


MANY = 10_000
quickly = pytest.mark.timeout(60)


@quickly
def test_round_of_thousands_forms_quickly(build, choose):
    roster = build.roster([f"node{number}" for number in range(MANY)])
    assert len(choose(roster, State(), bounds=(1, MANY)).state.seats) == MANY


@quickly
def test_partly_unreachable_thousands_form_quickly(build, choose):
    keys = [f"node{number}" for number in range(MANY)]
    apart = {key: tuple(keys[at + 1 : at + 32]) if at % 8 == 0 else () for at, key in enumerate(keys)}
    state = ended(build.state(keys), Cause.FAILURE, keys[0], "")
    roster = tuple(build.seen(key, after=1, unreachable=apart[key]) for key in keys)
    assert set(choose(roster, state, bounds=(1, MANY)).state.seats.keys) == {key for key in keys if not apart[key]}


# -- certain failures


@pytest.mark.parametrize(
    ("failure", "certain"),
    [
        ({}, False),  # an exit code without a message
        ({"message": "ValueError: no such file"}, True),
        ({"stderr_tail": ("Traceback", "KeyError: 3")}, True),
        ({"message": "RuntimeError: [..] Connection closed by peer [10.0.0.7]:4242"}, False),
        ({"message": "ValueError", "stderr_tail": ("NCCL WARN ..",)}, False),
        ({"exitcode": -9}, True),
        ({"exitcode": -11}, True),
        ({"exitcode": -15, "message": "Connection reset by peer", "error_file_data": {"message": {}}}, False),
        ({"exitcode": -15, "message": "ValueError: no such file", "error_file_data": {"message": {}}}, True),
        ({"exitcode": -6}, False),  # how a collective aborts
        ({"exitcode": -6, "message": "assertion x > 0 failed"}, True),
        ({"message": "   "}, False),
        ({"curable": False}, True),
        ({"exitcode": -6, "reason": "hang: the watchdog timer 'step' was not released in time"}, True),
    ],
)
def test_certainty_of_one_failure(build, failure, certain):
    assert is_certain({0: build.failure(**failure)}) is certain


def test_one_certain_failure_is_enough(build):
    failures = {0: build.failure(0, message="gloo: timed out waiting"), 1: build.failure(1, message="ValueError")}
    assert is_certain(failures)


def test_failure_caused_by_another_is_ignored(build):
    failures = {0: build.failure(0), 1: build.failure(1, exitcode=-9, caused_by=0)}
    assert not is_certain(failures)


def test_no_failure_is_not_certain():
    assert not is_certain({})


def test_phrases_are_lowercase():
    assert [phrase.lower() for phrase in PHRASES] == list(PHRASES)

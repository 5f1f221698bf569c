from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.participant import Lead, Standing, first_failures, lead, missed, standing, verdict
from elastic_core.rendezvous.state import Cause, State, closed, drained, ended, failed, formed, left_done, refused


@pytest.mark.parametrize(
    ("key", "after", "max_nodes", "expected"),
    [
        ("a", 0, 2, Standing.MEMBER),
        ("a", 1, 2, Standing.SPARE),  # it wants a newer round than the one it was in
        ("c", 0, 2, Standing.SPARE),
        ("c", 0, 3, Standing.WAITING),
    ],
)
def test_standing_while_a_round_runs(say, key, after, max_nodes, expected):
    assert standing(say.state("ab"), key, after, max_nodes) is expected


def test_standing_while_none_runs(say):
    over = ended(say.state("ab"), Cause.LEFT, "b", "")
    assert standing(State(), "a", 0, 2) is Standing.GATHERING
    assert standing(over, "a", 1, 2) is Standing.GATHERING
    assert standing(drained(over, "a", "a"), "a", 1, 2) is Standing.DRAINED
    assert standing(refused(over, [("c", "why")]), "c", 0, 2) is Standing.REFUSED
    assert standing(closed(drained(over, "a", "a"), "b", "", True), "a", 1, 2) is Standing.CLOSED


def test_when_members_are_done_there_is_no_spare_place_for_long(say):
    assert standing(left_done(say.state("ab"), "a", 1), "c", 0, 2) is Standing.WAITING


def test_a_round_that_was_over_before_its_member_looked_was_missed(say):
    running = say.state("ab")
    over = ended(running, Cause.LOST, "b", "", ("b",))
    assert missed(running, "a", 0) is None
    assert missed(over, "a", 0) == 1
    assert missed(over, "a", 1) is None
    assert missed(over, "c", 0) is None


def test_also_when_the_next_one_has_formed_without_it(say):
    over = ended(say.state("ab"), Cause.LOST, "b", "", ("b",))
    after = formed(over, say.seats("a"), 3, "", {"a", "b"})
    assert missed(after, "b", 0) == 1
    assert missed(after, "b", 1) is None
    assert missed(after, "a", 1) is None


def test_no_verdict_while_the_round_runs(say):
    assert verdict(say.state("ab"), "a", 1) is None


def test_the_verdict_on_a_round_that_ended(say):
    found = verdict(ended(say.state("ab"), Cause.LOST, "b", "lost b"), "a", 1)
    assert (found.outcome, found.reason, found.failed) == (Outcome.RESTART, "lost b", False)


def test_a_failure_is_told_with_all_that_is_known(say):
    state = failed(say.state("ab"), 1, say.report("a", certain=False, rank=0), 3)
    state = failed(state, 1, say.report("b", rank=1), 3)
    found = verdict(state, "a", 1)
    assert (found.outcome, found.failed, list(found.failures)) == (Outcome.RESTART, True, [1, 0])


def test_within_a_report_the_cause_comes_first(say):
    report = say.report("a", rank=0, caused_by=1)
    report = replace(report, failures=(*report.failures, say.failure(1)))
    assert list(first_failures(failed(say.state("ab"), 1, report, 3))) == [1, 0]


def test_the_next_round_formed_without_this_node(say):
    over = ended(say.state("ab"), Cause.LOST, "b", "", ("b",))
    found = verdict(formed(over, say.seats("a"), 3, "", {"a", "b"}), "b", 1)
    assert found.outcome is Outcome.RESTART
    assert "round 2 formed without this node" in found.reason


@pytest.mark.parametrize("succeeded", [True, False])
def test_the_verdict_of_a_closed_job(say, succeeded):
    state = failed(say.state("ab"), 1, say.report("a"), 3)
    found = verdict(closed(state, "b", "why", succeeded), "a", 1)
    assert (found.outcome, found.reason, found.succeeded, found.by) == (Outcome.CLOSED, "why", succeeded, "b")
    assert list(found.failures) == ([] if succeeded else [0])


def test_who_is_drained_is_told(say):
    assert verdict(drained(say.state("ab"), "b", "b"), "b", 1).outcome is Outcome.DRAINED
    assert verdict(drained(say.state("ab"), "b", "b"), "a", 1).outcome is Outcome.RESTART


def test_members_lead_in_rank_order_and_others_by_age(say):
    state = ended(say.state("abc"), Cause.LOST, "a", "", ("a",))
    assert [lead(state, key, 5).position for key in "bc"] == [0, 1]
    assert lead(state, "d", 3) == Lead(5)
    assert lead(State(), "a", 0) == Lead(0)


def test_who_was_asked_to_leave_does_not_lead_any_more(say):
    state = drained(say.state("abc"), "a", "a")
    assert [lead(state, key, 5).position for key in "abc"] == [7, 0, 1]


def test_the_nearer_the_sooner():
    patience = [Lead(position).patience for position in range(1, 30)]
    assert patience[0] == 1.0
    assert patience == sorted(patience)
    assert patience[-1] == 4.0
    assert [Lead(position).near for position in range(4)] == [True, True, True, False]

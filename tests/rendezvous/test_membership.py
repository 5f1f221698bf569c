from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.membership import JoinStatus, join_status, missed, verdict
from elastic_core.rendezvous.model import (
    Cause,
    State,
    closed,
    drained,
    ended,
    failed,
    first_failures,
    formed,
    refused,
    succeeded,
)


@pytest.mark.parametrize(
    ("key", "after", "max_nodes", "expected"),
    [
        ("a", 0, 2, JoinStatus.MEMBER),
        ("a", 1, 2, JoinStatus.SPARE),  # it wants a newer round than the one it was in
        ("c", 0, 2, JoinStatus.SPARE),
        ("c", 0, 3, JoinStatus.WAITING),
    ],
)
def test_standing_while_a_round_runs(say, key, after, max_nodes, expected):
    assert join_status(say.state("ab"), key, after, max_nodes) is expected


def test_standing_while_none_runs(say):
    over = ended(say.state("ab"), Cause.LEFT, "b", "")
    assert join_status(State(), "a", 0, 2) is JoinStatus.GATHERING
    assert join_status(over, "a", 1, 2) is JoinStatus.GATHERING
    assert join_status(drained(over, "a"), "a", 1, 2) is JoinStatus.DRAINED
    assert join_status(refused(over, [("c", "why")]), "c", 0, 2) is JoinStatus.REFUSED
    assert join_status(closed(drained(over, "a"), "b", "", True), "a", 1, 2) is JoinStatus.CLOSED


def test_when_members_are_done_there_is_no_spare_place_for_long(say):
    assert join_status(succeeded(say.state("ab"), ["a"], 1), "c", 0, 2) is JoinStatus.WAITING


def test_a_round_that_was_over_before_its_member_looked_was_missed(say):
    running = say.state("ab")
    over = ended(running, Cause.LOST, "b", "", ("b",))
    assert missed(running, "a", 0) is None
    assert missed(over, "a", 0) == 1
    assert missed(over, "a", 1) is None
    assert missed(over, "c", 0) == 1


def test_also_when_the_next_one_has_formed_without_it(say):
    over = ended(say.state("ab"), Cause.LOST, "b", "", ("b",))
    after = formed(over, say.seats("a"), 3, "", {"a", "b"})
    assert missed(after, "b", 0) == missed(after, "b", 1) == 2
    assert missed(after, "b", 2) is None
    assert missed(after, "a", 1) is None


def test_no_verdict_while_the_round_runs(say):
    assert verdict(say.state("ab"), "a", 1) is None


def test_a_round_of_others_that_formed_anew_with_its_number_is_not_the_one_that_the_node_is_in(say):
    assert verdict(say.state("b"), "a", 1).outcome is Outcome.RESTART


def test_the_verdict_on_a_round_that_ended(say):
    found = verdict(ended(say.state("ab"), Cause.LOST, "b", "lost b"), "a", 1)
    assert (found.outcome, found.reason, found.failed, found.lost) == (Outcome.RESTART, "lost b", False, True)


def test_a_failure_is_told_with_all_that_is_known(say):
    state = failed(say.state("ab"), 1, say.report("a", certain=False, rank=0))
    assert not verdict(state, "a", 1).judged
    state = failed(state, 1, say.report("b", rank=1))
    found = verdict(state, "a", 1)
    assert found.judged
    assert (found.outcome, found.failed, list(found.failures)) == (Outcome.RESTART, True, [1, 0])


def test_within_a_report_the_cause_comes_first(say):
    report = say.report("a", rank=0, caused_by=1)
    report = replace(report, failures=(*report.failures, say.failure(1)))
    assert list(first_failures(failed(say.state("ab"), 1, report))) == [1, 0]


def test_the_next_round_formed_without_this_node(say):
    over = ended(say.state("ab"), Cause.LOST, "b", "", ("b",))
    found = verdict(formed(over, say.seats("a"), 3, "", {"a", "b"}), "b", 1)
    assert found.outcome is Outcome.RESTART
    assert "round 2 formed without this node" in found.reason


@pytest.mark.parametrize("succeeded", [True, False])
def test_the_verdict_of_a_closed_job(say, succeeded):
    state = failed(say.state("ab"), 1, say.report("a"))
    found = verdict(closed(state, "b", "why", succeeded), "a", 1)
    assert (found.outcome, found.reason, found.succeeded, found.by) == (Outcome.CLOSED, "why", succeeded, "b")
    assert list(found.failures) == ([] if succeeded else [0])


def test_who_is_drained_is_told(say):
    assert verdict(drained(say.state("ab"), "b"), "b", 1).outcome is Outcome.DRAINED
    assert verdict(drained(say.state("ab"), "b"), "a", 1) is None

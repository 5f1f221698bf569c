from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.model import (
    Cause,
    JoinStatus,
    RoundId,
    State,
    closed,
    drained,
    ended,
    failed,
    first_failures,
    formed,
    join_status,
    missed,
    refused,
    succeeded,
    verdict,
)


def test_join_status_between_rounds(build):
    over = ended(build.state("ab"), Cause.LEFT, "b", "")
    assert join_status(State(), "a", RoundId(0), 2) is JoinStatus.GATHERING
    assert join_status(over, "a", RoundId(1), 2) is JoinStatus.GATHERING
    assert join_status(drained(over, "a"), "a", RoundId(1), 2) is JoinStatus.DRAINED
    assert join_status(refused(over, [("c", "why")]), "c", RoundId(0), 2) is JoinStatus.REFUSED
    assert join_status(closed(drained(over, "a"), "b", "", True), "a", RoundId(1), 2) is JoinStatus.CLOSED


def test_finished_member_ends_spare_status(build):
    assert join_status(succeeded(build.state("ab"), ["a"], RoundId(1)), "c", RoundId(0), 2) is JoinStatus.WAITING


def test_later_round_without_the_node_was_missed(build):
    over = ended(build.state("ab"), Cause.LOST, "b", "", ("b",))
    after = formed(over, build.seats("a"), 3, "", {"a", "b"})
    assert missed(after, "b", RoundId(0)) == missed(after, "b", RoundId(1)) == RoundId(2)
    assert missed(after, "b", RoundId(2)) is None
    assert missed(after, "a", RoundId(1)) is None


@pytest.mark.parametrize("members", ["b", "ab"])
def test_round_of_another_history_means_restart(build, members):
    other = build.state(members, round=RoundId(1, "b.1"))
    found = verdict(other, "a", RoundId(1, "a.1"))
    assert (found.outcome, found.reason) == (Outcome.RESTART, "round 1 formed again because the store lost its data")
    assert missed(build.state("b", round=RoundId(1, "b.1")), "a", RoundId(1, "a.1")) == RoundId(1, "b.1")
    assert join_status(other, "a", RoundId(1, "a.1"), 2) is (
        JoinStatus.MEMBER if "a" in members else JoinStatus.WAITING
    )


def test_verdict_on_ended_round_has_its_reason(build):
    found = verdict(ended(build.state("ab"), Cause.LOST, "b", "lost b"), "a", RoundId(1))
    assert (found.outcome, found.reason, found.failed, found.lost) == (Outcome.RESTART, "lost b", False, True)


def test_verdict_lists_certain_failures_first(build):
    state = failed(build.state("ab"), RoundId(1), build.report("a", certain=False, rank=0))
    assert not verdict(state, "a", RoundId(1)).judged
    state = failed(state, RoundId(1), build.report("b", rank=1))
    found = verdict(state, "a", RoundId(1))
    assert found.judged
    assert (found.outcome, found.failed, list(found.failures)) == (Outcome.RESTART, True, [1, 0])


def test_cause_comes_first_within_a_report(build):
    report = build.report("a", rank=0, caused_by=1)
    report = replace(report, failures=(*report.failures, build.failure(1)))
    assert list(first_failures(failed(build.state("ab"), RoundId(1), report))) == [1, 0]


def test_round_formed_without_the_node_means_restart(build):
    over = ended(build.state("ab"), Cause.LOST, "b", "", ("b",))
    found = verdict(formed(over, build.seats("a"), 3, "", {"a", "b"}), "b", RoundId(1))
    assert found.outcome is Outcome.RESTART
    assert "round 2 formed without this node" in found.reason


@pytest.mark.parametrize("succeeded", [True, False])
def test_verdict_on_a_closed_job(build, succeeded):
    state = failed(build.state("ab"), RoundId(1), build.report("a"))
    found = verdict(closed(state, "b", "why", succeeded), "a", RoundId(1))
    assert (found.outcome, found.reason, found.succeeded, found.by) == (Outcome.CLOSED, "why", succeeded, "b")
    assert list(found.failures) == ([] if succeeded else [0])


def test_only_the_drained_node_gets_the_verdict(build):
    assert verdict(drained(build.state("ab"), "b"), "b", RoundId(1)).outcome is Outcome.DRAINED
    assert verdict(drained(build.state("ab"), "b"), "a", RoundId(1)) is None

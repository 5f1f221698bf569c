"""The words of a node: why it does not come to a round, and who is missing."""

from __future__ import annotations

import pytest

from elastic_core.errors import (
    ExitCode,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.membership import JoinStatus
from elastic_core.rendezvous.messages import fenced, no_answer, no_contact, no_place, progress
from elastic_core.rendezvous.model import Cause, RoundId, State, closed, ended, failed, refused
from elastic_core.rendezvous.policy import Wait
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout


def closed_for(state, was_closed):
    return no_place(state, JoinStatus.CLOSED, "b", "job", was_closed)


def test_without_an_answer_the_known_outage_is_the_reason():
    outage = RendezvousConnectionError("connection refused")
    assert no_answer(outage, ValueError("odd"), 5.0) is outage


@pytest.mark.parametrize(
    ("outage", "fault", "expected"),
    [
        (
            "connection refused",
            None,
            " at store:1 within 7 s (--rdzv-conf=connect_timeout): connection refused; check",
        ),
        (
            "store:1 is down; correct the endpoint",
            None,
            " within 7 s (--rdzv-conf=connect_timeout): store:1 is down",
        ),
        (None, KeyError("dsn"), ": KeyError: 'dsn'; check --rdzv-endpoint, and that the store is running"),
        (None, None, ": it does not answer; check --rdzv-endpoint"),
    ],
)
def test_a_store_that_never_answered_is_told_once_with_what_to_do(outage, fault, expected):
    settings = RendezvousSettings("job", 1, 2, RendezvousTimeout(), connect_timeout=7.0, endpoint="store:1")
    error = no_contact(outage and RendezvousConnectionError(outage), fault, settings)
    assert error.exit_code == ExitCode.STORE_UNREACHABLE
    assert str(error).startswith("no answer from the rendezvous store")
    assert expected in str(error)
    assert [str(error).count(words) for words in ("store:1", "endpoint")] == [1, 1]


def test_a_node_that_is_drained_goes_in_peace():
    error = no_place(State(), JoinStatus.DRAINED, "b", "job", was_closed=False)
    assert isinstance(error, RendezvousGracefulExitError)
    assert "drain" in str(error)


def test_a_node_that_is_refused_is_told_why_and_what_to_do():
    state = refused(State(), [("b", "b is on another host")])
    error = no_place(state, JoinStatus.REFUSED, "b", "job", was_closed=False)
    assert isinstance(error, RendezvousStateError)
    assert "b is on another host" in str(error)
    assert "--node-id" in str(error)


def test_a_spare_of_a_job_that_succeeded_goes_in_peace():
    error = closed_for(closed(State(), "a", "all are done", succeeded=True), was_closed=False)
    assert isinstance(error, RendezvousGracefulExitError)
    assert str(error) == "the job 'job' was closed by a: all are done; this node was not needed"


@pytest.mark.parametrize("succeeded", [True, False])
def test_who_comes_when_all_is_over_needs_another_name_for_its_job(succeeded):
    error = closed_for(closed(State(), "a", "it is over", succeeded), was_closed=True)
    assert isinstance(error, RendezvousClosedError)
    assert "another --rdzv-id" in str(error)


def test_who_waited_for_a_job_that_failed_learns_of_the_failures(say):
    state = failed(say.state("a", max_restarts=0), RoundId(1), say.report("a", rank=3))
    error = closed_for(closed(state, "a", "no restarts left", succeeded=False), was_closed=False)
    assert isinstance(error, RendezvousClosedError)
    assert list(error.failures) == [3]
    assert "--rdzv-id" not in str(error)


@pytest.mark.parametrize(
    ("outage", "answer"),
    [(None, "it does not answer"), (RendezvousConnectionError("refused"), "the last answer was: refused")],
)
def test_a_node_that_fences_itself_off_says_how_long_it_has_tried(outage, answer):
    verdict = fenced(4.25, 5.0, outage)
    assert verdict.outcome is Outcome.FENCED
    assert verdict.reason.startswith("the rendezvous store was unreachable for 4.2 s; after 5 s without a heartbeat")
    assert verdict.reason.endswith(answer)


@pytest.fixture
def text(say):
    def make(state, gathering=None, roster=(), key="a", **bounds):
        return progress(state, gathering, roster, say.settings(**{"min_nodes": 2, **bounds}), key)

    return make


@pytest.mark.parametrize(
    ("gathering", "expected"),
    [
        (Wait("1 of 2 nodes joined", None, 1, 2), "1 of 2 nodes joined"),
        (Wait("1 of 2 nodes joined", None, 1, 2, ("b", "c")), "1 of 2 nodes joined, missing: b, c"),
        (
            Wait("2 nodes joined, waiting for the last call", None, 2, 4),
            "2 of 4 nodes joined, waiting for the last call",
        ),
    ],
)
def test_a_round_that_gathers(text, gathering, expected):
    assert text(State(), gathering) == expected


def test_a_node_that_was_lost_is_named_when_its_entry_is_gone_too(text, say):
    state = ended(say.state("ab"), Cause.LOST, "b", "lost b: no heartbeat for 5 s")
    assert text(state, Wait("1 of 2 nodes joined", None, 1, 2)) == "1 of 2 nodes joined; lost b: no heartbeat for 5 s"
    assert text(state, Wait("2 nodes joined, all is well", None, 2, 4)) == "2 of 4 nodes joined, all is well"


def test_those_outside(text, say):
    assert text(say.state("ab"), key="x") == "round 1 runs with 2 nodes; this one is waiting for the next"
    assert text(say.state("ab"), key="x", max_nodes=2) == "round 1 is full with 2 nodes; this one is a spare"


def test_a_member_is_told_who_still_works(text, say):
    roster = (say.seen("a", done=1), say.seen("b"), say.seen("c"))
    old = Wait("1 of 3 nodes joined", None, 1, 3, ("b", "c"))
    for most in (3, 4):
        told = text(say.state("abc"), old, roster, max_nodes=most)
        assert told == "1 of 3 nodes are done, still working: b, c"

"""The words of the errors of a node that does not come to a round."""

from __future__ import annotations

import pytest

from elastic_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from elastic_core.interfaces.handler import Outcome
from elastic_core.rendezvous.participant import Standing
from elastic_core.rendezvous.reasons import fenced, no_answer, no_place, too_few
from elastic_core.rendezvous.state import State, closed, failed, refused
from elastic_core.rendezvous.view import View


def closed_for(state, was_closed):
    return no_place(state, Standing.CLOSED, "b", "job", was_closed)


def test_without_an_answer_the_known_outage_is_the_reason():
    outage = RendezvousConnectionError("connection refused")
    assert no_answer(View(outage=outage, fault=ValueError("odd")), 5.0) is outage


def test_without_an_outage_the_fault_is_told():
    error = no_answer(View(fault=ValueError("odd")), 5.0)
    assert str(error) == ("expected the rendezvous store to answer within 5 s, found that it did not: ValueError: odd")
    assert str(no_answer(View(), 0.5)).endswith("within 0.5 s, found that it did not")


def test_a_node_that_is_drained_goes_in_peace():
    error = no_place(State(), Standing.DRAINED, "b", "job", was_closed=False)
    assert isinstance(error, RendezvousGracefulExitError)
    assert "drain" in str(error)


def test_a_node_that_is_refused_is_told_why_and_what_to_do():
    state = refused(State(), [("b", "b is on another host")])
    error = no_place(state, Standing.REFUSED, "b", "job", was_closed=False)
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
    state = failed(say.state("a"), 1, say.report("a", rank=3), 0)
    error = closed_for(closed(state, "a", "no restarts left", succeeded=False), was_closed=False)
    assert isinstance(error, RendezvousClosedError)
    assert list(error.failures) == [3]
    assert "--rdzv-id" not in str(error)


def test_a_job_that_succeeded_has_no_failures(say):
    state = failed(say.state("a"), 1, say.report("a", rank=3), 1)
    assert closed_for(closed(state, "a", "all are done", succeeded=True), was_closed=True).failures == {}


@pytest.mark.parametrize(("most", "bounds"), [(2, "expected 2 nodes to join"), (4, "expected 2 to 4 nodes to join")])
def test_too_few_says_how_many_were_expected(say, most, bounds):
    assert str(too_few(say.settings(2, most), "1 of 2 nodes joined")).startswith(bounds)


@pytest.mark.parametrize(("seen", "found"), [("", "found: too few;"), ("a, b", "found: a, b;")])
def test_too_few_says_who_was_there(say, seen, found):
    assert found in str(too_few(say.settings(), seen))


@pytest.mark.parametrize(
    ("outage", "answer"),
    [(None, "it does not answer at all"), (RendezvousConnectionError("refused"), "the last answer was: refused")],
)
def test_a_node_that_fences_itself_off_says_how_long_it_has_tried(outage, answer):
    verdict = fenced(4.25, 5.0, outage)
    assert verdict.outcome is Outcome.FENCED
    assert verdict.reason.startswith("the rendezvous store was out of reach for 4.2 s; after 5 s without a beat")
    assert verdict.reason.endswith(answer)

from __future__ import annotations

import pytest

from elastic_core.rendezvous.decide import Wait
from elastic_core.rendezvous.progress import few, progress_text
from elastic_core.rendezvous.state import Cause, State, ended


@pytest.fixture
def text(say):
    def make(state, gathering=None, roster=(), key="a", **bounds):
        return progress_text(state, gathering, roster, say.settings(**{"min_nodes": 2, **bounds}), key)

    return make


def test_nothing_is_known_before_the_first_answer(text):
    assert text(None) == ""
    assert text(State()) == ""


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


def test_after_a_round_has_ended_it_tells_who_is_not_back(text, say):
    state = ended(say.state("ab"), Cause.FAILURE, "b", "it failed")
    assert text(state, Wait("1 of 2 nodes joined", None, 1, 2, ("b",))) == "1 of 2 nodes joined, missing: b"


def test_those_outside(text, say):
    assert text(say.state("ab"), key="x") == "round 1 runs with 2 nodes; this one waits for the next"
    assert text(say.state("ab"), key="x", max_nodes=2) == "round 1 is full with 2 nodes; this one is a spare"


def test_a_member_is_told_who_still_works(text, say):
    roster = (say.seen("a", done=1), say.seen("b"), say.seen("c"))
    old = Wait("1 of 3 nodes joined", None, 1, 3, ("b", "c"))
    for most in (3, 4):
        told = text(say.state("abc"), old, roster, max_nodes=most)
        assert told == "1 of 3 nodes are done, still at work: b, c"


def test_members_that_went_after_their_success_count(text, say):
    roster = (say.seen("a", done=1), say.seen("c", done=0))
    assert text(say.state("abc", done=("b",)), None, roster) == "2 of 3 nodes are done, still at work: c"
    assert text(say.state("a"), None, (say.seen("a", done=1),)) == ""


def test_not_hundreds_of_names():
    assert few(("a", "b")) == "a, b"
    assert few(tuple(str(i) for i in range(1000))) == "0, 1, 2, 3, 4, 5, 6, 7 and 992 more"

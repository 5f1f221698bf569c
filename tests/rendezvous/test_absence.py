"""Members without an entry: what one look at them says, and how long they have."""

from __future__ import annotations

import pytest

from elastic_core.rendezvous.absence import CONFIRM, Absence, goes_without

NOTHING = Absence()


def test_nobody_is_absent_before_the_first_look():
    assert NOTHING.until == float("-inf")
    assert NOTHING.looked(["a", "b"], ["a", "b"], 5.0).until == float("-inf")


def test_who_is_absent_for_the_first_time_has_a_moment():
    first = NOTHING.looked(["a"], ["a", "b"], 5.0)
    assert first.until == 5.0 + CONFIRM
    again = first.looked(["a"], ["a", "b"], 5.2)
    assert again.until == first.until


def test_another_one_that_goes_makes_it_longer():
    first = NOTHING.looked(["a", "c"], ["a", "b", "c"], 5.0)
    assert first.looked(["a"], ["a", "b", "c"], 5.2).until == 5.2 + CONFIRM


def test_time_to_come_back_is_never_made_shorter():
    given = NOTHING.all_back_by(10.0)
    assert given.looked(["a"], ["a", "b"], 5.0).until == 10.0
    assert given.all_back_by(7.0).until == 10.0


def test_ones_own_entry_is_dropped_if_it_was_there_or_nobody_has_looked():
    assert NOTHING.dropped("a", ["b"])
    assert not NOTHING.dropped("a", ["a"])
    assert NOTHING.looked(["a"], ["a"], 1.0).dropped("a", [])
    assert not NOTHING.looked([], [], 1.0).dropped("a", [])


@pytest.mark.parametrize(
    ("members", "next_ones", "there", "goes"),
    [("ab", "ac", "ac", True), ("ab", "ac", "abc", False), ("ab", "ab", "", False)],
)
def test_a_round_goes_without_a_member_that_is_neither_in_it_nor_there(say, members, next_ones, there, goes):
    before, after = say.state(members, open=False), say.state(next_ones, round=2)
    assert goes_without(before, after, say.roster(there)) is goes


def test_only_a_round_that_forms_goes_without_somebody(say):
    running, over = say.state("ab"), say.state("ab", open=False)
    assert not goes_without(running, over, ())
    assert not goes_without(over, over, ())

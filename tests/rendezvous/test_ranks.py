from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.rendezvous.model import Entry
from elastic_core.rendezvous.roster import ordered
from elastic_core.text import natural_order


def ranks(keys, before="", hosts=None, hints=None):
    hosts, hints = hosts or {}, hints or {}
    entries = [Entry(key, key, hosts.get(key, ""), rank_hint=hints.get(key)) for key in keys]
    return "".join(entry.key for entry in ordered(entries, list(before)))


@pytest.mark.parametrize(
    ("keys", "before", "expected"),
    [
        ("abc", "", "abc"),
        ("cab", "abc", "abc"),  # all members are back
        ("abd", "abc", "abd"),  # a newcomer takes the rank of a lost member
        ("acd", "abc", "adc"),
        ("abcd", "abc", "abcd"),  # or the last rank
        ("bc", "abc", "bc"),  # later ranks move up
        ("bcd", "abc", "bdc"),  # rank 0 is lost: the first survivor takes it, and no other moves
        ("bd", "ab", "bd"),
        ("de", "abc", "de"),  # no member is left
        ("bdef", "abc", "bdef"),
        ("a", "abc", "a"),
    ],
)
def test_survivors_keep_their_ranks(keys, before, expected):
    assert ranks(keys, before) == expected


def test_newcomers_are_ordered_by_host_then_age():
    assert ranks("abc", hosts={"a": "node66", "b": "node7", "c": "node7"}) == "bca"


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({"c": 0}, "cab"),
        ({"a": 2}, "bca"),
        ({"a": 1, "b": 1}, "bac"),  # the first of the two gets it
        ({"a": 3}, "abc"),  # no such rank
        ({"a": -1}, "abc"),
        ({"a": 2, "b": 1, "c": 0}, "cba"),
    ],
)
def test_rank_hint_is_honored_if_the_rank_exists(hints, expected):
    assert ranks("abc", hints=hints) == expected


def test_natural_order_compares_numbers_by_value():
    names = ["node66", "node7", "node", "node7b", "node07a", "", "7", "a-1-10", "a-1-9"]
    expected = ["", "7", "a-1-9", "a-1-10", "node", "node7", "node07a", "node7b", "node66"]
    assert sorted(names, key=natural_order) == expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_two_names_have_an_order(one, other):
    """Unicode digits (², ٣) are treated as letters."""
    assert sorted([one, other], key=natural_order)


def test_number_may_exceed_pythons_digit_limit():
    assert natural_order("1" * 5000) < natural_order("1" * 5001)
    assert natural_order("h" + "9" * 18) < natural_order("h1" + "0" * 18)


@given(st.lists(st.from_regex(r"\A[a-c]{0,2}[0-9]{0,3}\Z")))
def test_natural_order_matches_reference_implementation(names):
    def reference(name):
        return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]

    assert sorted(names, key=natural_order) == sorted(names, key=reference)


def reference_order(entries, before):
    """The reference, without hints: walk the old ranks, then append."""
    here = {entry.key: entry for entry in entries}
    survivors = [key for key in before if key in here]
    newcomers = sorted(
        (entry for entry in entries if entry.key not in survivors), key=lambda entry: natural_order(entry.host)
    )
    order = []
    for rank, key in enumerate(before):
        if rank == 0 and survivors:
            order.append(here[survivors[0]])
        elif key in here and key != (survivors or [None])[0]:
            order.append(here[key])
        elif newcomers:
            order.append(newcomers.pop(0))
    return order + newcomers


members = st.lists(st.sampled_from("abcdefghij"), unique=True, min_size=1)


@given(members, st.lists(st.sampled_from("abcdefghij"), unique=True), st.data())
def test_ranks_match_reference_implementation(keys, before, data):
    entries = [Entry(key, key, data.draw(st.sampled_from(["n1", "n2", "n10"]))) for key in keys]
    assert ordered(entries, before) == reference_order(entries, before)


@given(members, st.lists(st.sampled_from("abcdefghij"), unique=True), st.data())
def test_hints_leave_one_rank_for_each_node(keys, before, data):
    hints = {key: data.draw(st.none() | st.integers(-2, 12)) for key in keys}
    entries = [Entry(key, key, rank_hint=hints[key]) for key in keys]
    order = ordered(entries, before)
    assert sorted(entry.key for entry in order) == sorted(keys)
    for rank in range(len(keys)):
        if rank in hints.values():
            assert order[rank].rank_hint == rank

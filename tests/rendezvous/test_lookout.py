"""What a node sees of the others, look by look."""

from __future__ import annotations

import pytest

from elastic_core.clock import Instant
from elastic_core.interfaces.backend import Announced
from elastic_core.rendezvous.absence import CONFIRM
from elastic_core.rendezvous.codec import encoded_entry
from elastic_core.rendezvous.lookout import Lookout, beats_of
from elastic_core.rendezvous.state import State


def at(seconds):
    return Instant(float(seconds))


@pytest.fixture
def lookout(say):
    return Lookout("a", say.settings(min_nodes=2))


@pytest.fixture
def announced(say):
    """Entries by their keys, with the beats given; with leases instead if none are."""

    def announced(keys, beats=None):
        return tuple(Announced(key, encoded_entry(say.entry(key)), beats) for key in keys)

    return announced


def keys(lookout):
    return "".join(seen.entry.key for seen in lookout.roster)


def test_before_the_first_look_nobody_is_there(lookout):
    assert lookout.roster == ()
    assert lookout.settled == at("-inf")


def test_entries_keep_their_order_and_the_time_they_were_first_seen(lookout, announced):
    lookout.look(announced("ba", beats=1))
    lookout.judge(State(), at(1))
    lookout.look(announced("bca", beats=2))
    lookout.judge(State(), at(2))
    assert [(seen.entry.key, seen.since) for seen in lookout.roster] == [("b", 1), ("c", 2), ("a", 1)]


def test_who_was_away_is_seen_for_the_first_time_again(lookout, announced):
    for now, there in enumerate(["ab", "a", "ab"]):
        lookout.look(announced(there, beats=now))
        lookout.judge(State(), at(now))
    assert [seen.since for seen in lookout.roster] == [0, 2]


def test_whose_beat_stands_still_is_late(lookout, announced):
    for now in range(8):
        lookout.look(announced("a", beats=now) + announced("b", beats=1))
        lookout.judge(State(), at(now))
    assert [(seen.entry.key, seen.late) for seen in lookout.roster] == [("a", False), ("b", True)]


def test_an_entry_is_decoded_once(lookout, announced):
    lookout.look(announced("a", beats=1))
    lookout.judge(State(), at(1))
    first = lookout.roster[0].entry
    lookout.look(announced("a", beats=2))
    lookout.judge(State(), at(2))
    assert lookout.roster[0].entry is first


def test_an_entry_that_cannot_be_read_is_logged_once_and_does_not_stop_the_others(lookout, announced, capsys):
    for now in (1, 2):
        lookout.look((Announced("x", b"{", 1), *announced("b", beats=1)))
        lookout.judge(State(), at(now))
    assert keys(lookout) == "b"
    assert capsys.readouterr().err.count("entry not readable") == 1


def test_presumed_late_is_late_at_once_and_with_doubt_two_looks_later(lookout, announced):
    def late(now):
        lookout.look(announced("bc", beats=7))
        lookout.judge(State(), at(now))
        return "".join(seen.entry.key for seen in lookout.roster if seen.late)

    lookout.presume_late(["b"], ["c"], {"b": 7, "c": 7}, at(10))
    assert [late(10), late(11), late(12)] == ["b", "b", "bc"]


def test_who_has_beaten_since_is_not_presumed_late_any_more(lookout, announced):
    lookout.presume_late(["b", "gone"], [], {"b": 7}, at(10))
    lookout.look(announced("b", beats=8))
    lookout.judge(State(), at(10))
    assert not lookout.roster[0].late


def test_a_store_with_leases_has_dropped_an_entry_that_was_seen_before(lookout, announced):
    assert not lookout.look(announced("ab"))
    lookout.judge(State(), at(1))
    assert lookout.look(announced("b"))
    lookout.judge(State(), at(2))
    assert not lookout.look(announced("b"))  # it has been told


def test_a_store_without_leases_drops_nothing(lookout, announced):
    lookout.look(announced("ab", beats=1))
    lookout.judge(State(), at(1))
    assert not lookout.look(announced("b", beats=2))


def test_members_without_an_entry_get_a_moment_while_their_round_runs(lookout, announced, say):
    lookout.look(announced("a"))
    lookout.judge(say.state("ab"), at(1))
    assert lookout.settled == at(1 + CONFIRM)


def test_after_a_round_its_members_have_a_moment_too(lookout, announced, say):
    """While they stop their workers: else the next round would form without them."""
    lookout.look(announced("a"))
    lookout.judge(say.state("ab", open=False), at(1))
    assert lookout.settled == 1 + CONFIRM


def test_a_store_without_any_entry_has_dropped_ours(lookout, say):
    """It has leases, though there is none to show it: nobody is lost for that."""
    assert lookout.look(())
    lookout.judge(say.state("ab"), at(1))
    assert lookout.settled == 1 + CONFIRM


def test_of_a_store_with_beats_nobody_gets_a_moment(lookout, announced, say):
    lookout.look(announced("a", beats=1))
    lookout.judge(say.state("ab"), at(1))
    assert lookout.settled == at("-inf")


def test_all_are_expected_back_within_a_window(lookout, say):
    lookout.expect_all_back(at(10))
    assert lookout.settled == 10 + say.settings().window
    lookout.expect_all_back(at(9))
    assert lookout.settled == 10 + say.settings().window


def test_enough_counts_from_the_first_look_that_saw_it_in_each_round(lookout, announced, say):
    def since(there, state, now):
        lookout.look(announced(there, beats=now))
        lookout.judge(state, at(now))
        return lookout.enough_since(state, at(now))

    over = say.state("xy", open=False, gone=("x", "y"))
    assert since("a", State(), 1) is None
    assert since("ab", State(), 2) == 2
    assert since("abc", State(), 3) == 2
    assert since("ab", over, 4) == 4
    assert since("a", over, 5) is None
    assert since("ab", over, 6) == 6


@pytest.mark.parametrize(("there", "members", "waiting"), [("abc", "", 3), ("abcdef", "", 4), ("abcdef", "ab", 2)])
def test_no_more_wait_than_there_is_room_for(lookout, announced, say, there, members, waiting):
    state = say.state(members) if members else State()
    lookout.look(announced(there, beats=1))
    lookout.judge(state, at(1))
    assert lookout.count_waiting(state) == waiting


def test_beats_are_those_of_entries_that_have_some(announced):
    assert beats_of(announced("a", beats=3) + announced("b")) == {"a": 3}

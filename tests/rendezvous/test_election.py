"""Leader election from the view of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.clock import Instant
from elastic_core.rendezvous.election import Election, ordered_by_age, position
from elastic_core.rendezvous.model import RoundId, drained, succeeded
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

INTERVAL = 1.0


@pytest.fixture
def waits():
    """A node that does not lead."""
    return Election(RendezvousSettings("job", 1, 9, RendezvousTimeout(), INTERVAL, keep_alive_max_attempt=5))


def after(election, looks, value=7, place=1):
    """Read the leaders' counter at these times, each time with this value."""
    for now in looks:
        election = election.seen(value, Instant(now), place)
    return election


def test_drained_or_finished_member_does_not_lead(build):
    assert [position(drained(build.state("abc"), "a"), key, 5) for key in "abc"] == [7, 0, 1]
    assert [position(succeeded(build.state("abc"), ["b"], RoundId(1)), key, 5) for key in "abc"] == [0, 7, 1]


def test_working_members_position_is_independent_of_age(build):
    state = drained(succeeded(build.state("abc"), ["b"], RoundId(1)), "c")
    assert [ordered_by_age(state, key) for key in "abcd"] == [False, True, True, True]


def test_patience_grows_with_the_position(waits):
    patience = [waits.patience(place) for place in range(1, 30)]
    assert patience == sorted(patience)
    assert (patience[0], patience[-1]) == (5.0, 20.0)
    assert [waits.looks(place, beats=1) for place in range(4)] == [True, True, True, False]
    assert waits.looks(9, beats=2)


def test_next_in_line_leads_after_a_silent_timeout(waits):
    assert not after(waits, range(5)).stepping_in
    assert after(waits, range(6)).stepping_in == "the leader is silent"
    assert not after(waits, range(6), place=2).stepping_in
    assert after(waits, range(8), place=2).stepping_in


def test_moving_counter_is_no_silence(waits):
    moved = after(waits, range(4)).seen(8, Instant(4.0), 1)
    assert not after(moved, range(5, 9), value=8).stepping_in


def test_time_alone_is_no_silence(waits):
    assert not after(waits, [0, 100]).stepping_in


def test_silence_is_not_counted_across_an_outage(waits):
    back = after(waits, [0.0, 1.0]).after_outage(Instant(30.0))
    assert not after(back, [30.0, 31.0]).stepping_in
    assert after(back, [30.0, 31.0, 32.0]).stepping_in


def test_line_is_recounted_once_in_a_silence(waits):
    doubting = after(waits, range(4))
    assert doubting.recount
    assert not after(replace(doubting, recount=False), [4.0]).recount


def test_first_in_line_of_two_leaders_continues(waits):
    leads = waits.leads().counted(7, Instant(0.0), 1)
    assert leads.counted(8, Instant(1.0), 1).leading
    assert not leads.counted(9, Instant(1.0), 1).leading
    assert leads.counted(9, Instant(1.0), 0).leading


def test_vacancy_is_filled_without_waiting(waits):
    assert waits.leader_left(True, Instant(0.0), 1).stepping_in == "the leader has left"
    second = waits.leader_left(True, Instant(0.0), 2)
    assert not second.stepping_in
    assert second.leader_left(True, Instant(1.25), 2).stepping_in
    filled = second.leader_left(False, Instant(1.0), 2)
    assert not filled.leader_left(True, Instant(2.0), 2).stepping_in


def test_leader_that_cannot_work_pauses(waits):
    leads = waits.leads()
    for now in range(2):
        leads = leads.failed(Instant(now))
        assert leads.leading
    gave_up = leads.failed(Instant(2.0))
    assert not gave_up.leading
    assert gave_up.paused(Instant(51.0))
    assert not gave_up.paused(Instant(53.0))
    assert not after(gave_up, range(3, 30)).stepping_in
    assert after(gave_up, range(30, 60)).stepping_in
    assert leads.worked().failed(Instant(2.0)).leading

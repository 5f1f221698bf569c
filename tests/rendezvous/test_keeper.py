"""The keeper, turned by hand on a fake clock over a memory in which things go wrong."""

from __future__ import annotations

import pytest

from elastic_core.rendezvous.codec import decoded_entry
from elastic_core.rendezvous.state import Report, State, closed, failed, left


def test_a_single_node_forms_its_round_in_one_turn(node):
    one = node(max_nodes=1)
    due = one.want()
    assert (one.state.round, one.state.open) == (1, True)
    assert one.keeper.view.state == one.state
    assert due == pytest.approx(one.settings.keep_alive_interval)
    assert one.backend.calls["set_state"] == 1


def test_in_a_round_a_leader_beats_and_looks_once_in_an_interval(node):
    one = node(max_nodes=1)
    one.want()
    one.run(1.0)
    one.backend.calls.clear()
    one.run(60.0)
    assert 58 <= one.backend.calls["beat"] <= 61
    assert one.backend.calls["roster"] <= 61
    assert set(one.backend.calls) <= {"beat", "roster"}


def test_who_does_not_lead_only_beats(pair):
    leader, other = pair
    other.backend.calls.clear()
    for _ in range(60):
        leader.keeper.turn()
        leader.clock.advance(max(other.keeper.turn() - leader.clock.now(), 0.0))
    assert set(other.backend.calls) == {"beat"}
    assert other.backend.calls["beat"] <= 61


def test_a_change_that_cannot_be_made_is_given_up_and_holds_nothing_up(node):
    one = node(max_nodes=1)
    one.want()
    bad = one.keeper.amend(lambda state: 1 // 0)
    good = one.keeper.amend(lambda state: closed(state, "a", "enough", succeeded=True))
    one.keeper.turn()
    assert isinstance(bad.fault, ZeroDivisionError)
    assert bad.done.is_set()
    one.keeper.turn()
    assert good.done.is_set()
    assert one.state.closed


def test_changes_come_before_the_withdrawal_that_was_asked_for_after_them(node):
    one = node(max_nodes=1)
    one.want()
    one.keeper.amend(lambda state: left(state, "a/1", "goes"))
    done = one.keeper.withdraw()
    one.keeper.turn()
    assert done.done.is_set()
    assert not one.memory.entries
    assert (one.state.open, one.state.gone) == (False, ("a/1",))
    assert not one.keeper.leading


def test_who_wants_again_before_the_withdrawal_is_carried_out_stays(node):
    one = node(min_nodes=2)
    one.want()
    ticket = one.keeper.withdraw()
    one.keeper.want(one.entry)
    one.keeper.turn()
    assert ticket.done.is_set()
    assert list(one.memory.entries) == ["a/1"]
    one.run(3.0)
    assert one.memory.entries["a/1"].beats >= 2


def test_a_bad_entry_stays_outside(node, capsys):
    one = node(last_call=1.0)
    one.backend.announce("stranger/1", b"not an entry")
    one.want()
    one.run(30.0)
    assert [seat.key for seat in one.state.seats] == ["a/1"]
    assert capsys.readouterr().err.count("entry not readable") == 1


def test_views_are_published_when_something_changed_only(node):
    one = node(max_nodes=1)
    one.want()
    one.run(5.0)
    published = len(one.views)
    one.run(30.0)
    assert len(one.views) == published
    assert all(one.views[i] != one.views[i + 1] for i in range(len(one.views) - 1))


def test_state_is_empty_before_the_first_write(node):
    one = node(min_nodes=2)
    one.want()
    assert one.keeper.view.state == State()
    assert one.memory.state is None
    assert (one.keeper.view.gathering.joined, one.keeper.view.waiting) == (1, 1)


def test_a_failure_is_told_before_the_node_announces_itself_anew(pair):
    """Who sees the new entry must find the report: else the round could end for another cause, and cost nothing."""
    _, other = pair
    report = Report("b/1", "b", (), certain=True)
    other.keeper.amend(lambda state: failed(state, 1, report, 3))
    seen = []
    other.memory.on_write = lambda _, after: seen.append(decoded_entry(other.memory.entries["b/1"].entry).after)
    other.want(after=1)
    assert seen == [0]
    assert (other.state.restarts, other.keeper.view.announced.after) == (1, 1)


def test_a_node_that_slept_does_not_announce_what_it_wanted_before(pair):
    """Its entry was dropped and the others formed a round without it: the old entry would be given a seat."""
    leader, other = pair
    del leader.memory.entries["b/1"]
    leader.keeper.roster_changed()
    leader.keeper.turn()
    leader.want(after=1)
    leader.clock.advance(leader.settings.timeout.last_call)
    leader.keeper.turn()
    assert (leader.state.round, len(leader.state.seats)) == (2, 1)
    other.backend.reachable = False
    other.keeper.turn()
    other.backend.reachable = True
    other.keeper.turn()
    assert list(leader.memory.entries) == ["a/1"]
    other.want(after=1)
    assert list(leader.memory.entries) == ["a/1", "b/1"]

"""Keepers over a store that loses what it knew: its memory, or their entries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.rendezvous.absence import CONFIRM
from elastic_core.rendezvous.codec import decoded_state


def test_a_store_without_memory_gets_it_back_and_nobody_is_called_lost(pair):
    leader, other = pair
    known = leader.state
    leader.backend.reachable = other.backend.reachable = False
    leader.clock.advance(1.0)
    leader.keeper.turn()
    other.keeper.turn()
    leader.memory.state = None
    leader.memory.entries.clear()
    leader.backend.reachable = True
    leader.clock.advance(1.0)
    leader.keeper.turn()
    assert leader.state == known
    assert list(leader.memory.entries) == ["a/1"]
    leader.run(leader.settings.window - 1.5)  # the other one is not there yet
    assert leader.state.open
    other.backend.reachable = True
    other.keeper.turn()
    for _ in range(20):
        leader.clock.advance(0.5)
        leader.keeper.turn()
        other.keeper.turn()
    assert leader.state == known


def test_who_did_not_come_back_to_a_store_without_memory_is_lost_after_a_window(pair):
    leader, _ = pair
    leader.backend.reachable = False
    leader.clock.advance(1.0)
    leader.keeper.turn()
    leader.memory.state = None
    leader.memory.entries.clear()
    leader.backend.reachable = True
    back = leader.clock.advance(1.0)
    gone = set()
    leader.memory.on_write = lambda _, after: gone.update(decoded_state(after).gone)
    leader.run(leader.settings.window - 0.5, step=0.05)
    assert not gone
    leader.run(3 * leader.settings.window, step=0.05)
    assert gone == {"b/1"}
    turns_while_quiet = leader.backend.calls["roster"]
    assert turns_while_quiet < 2 * (leader.clock.now() - back) + 10


def test_a_giving_back_that_was_refused_is_tried_again(node):
    one = node(max_nodes=1)
    one.want()
    known = one.state
    one.memory.state = None
    one.backend.lose_answers = 0
    one.keeper.state_changed()
    one.backend.reachable = False
    one.keeper.turn()
    one.backend.reachable = True
    one.clock.advance(1.0)
    one.keeper.turn()
    assert one.state == known


def test_who_lost_its_entry_while_the_store_slept_is_not_lost(pair):
    """A store that drops the entries of those that do not beat dropped them all, while nobody could."""
    leader, other = pair
    leader.memory.on_write = lambda *_: leader.clock.advance(leader.settings.window)
    leader.keeper.amend(lambda state: replace(state, reason="slept"))
    del leader.memory.entries["b/1"]
    leader.keeper.turn()
    leader.memory.on_write = None
    leader.keeper.roster_changed()
    leader.keeper.turn()
    assert leader.state.open
    other.want()
    leader.run(3 * leader.settings.window)
    assert leader.state.gone == ("b/1",)  # it was there once more, and then beat no more


def test_a_store_that_ends_all_leases_at_once_ends_no_round(pair):
    """As an etcd cluster does whose leader slept and wakes: one after the other, that of who leads the job the last."""
    leader, other = pair
    leader.memory.leases = True
    leader.run(0.5)
    del leader.memory.entries["b/1"]
    leader.keeper.roster_changed()
    leader.keeper.turn()
    assert leader.state.open
    del leader.memory.entries["a/1"]
    leader.keeper.roster_changed()
    leader.keeper.turn()
    assert list(leader.memory.entries) == ["a/1"]
    leader.run(leader.settings.window / 2)
    other.backend.reachable = False  # its renewal fails: the lease is gone
    other.keeper.turn()
    other.backend.reachable = True
    other.keeper.turn()
    leader.run(3 * leader.settings.window)
    assert leader.state.open
    assert leader.state.gone == ()


def test_whose_lease_alone_has_ended_is_lost_a_moment_later(pair):
    leader, _ = pair
    leader.memory.leases = True
    leader.run(0.5)
    del leader.memory.entries["b/1"]
    leader.keeper.roster_changed()
    gone = leader.clock.now()
    due = leader.keeper.turn()
    while leader.state.open and due < gone + 2 * CONFIRM:
        leader.clock.advance(due - leader.clock.now())  # no news comes: it turns when it said
        due = leader.keeper.turn()
    assert leader.clock.now() - gone == pytest.approx(CONFIRM)
    assert leader.state.gone == ("b/1",)

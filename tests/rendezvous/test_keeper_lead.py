"""Which of several keepers leads, and who does when it is gone."""

from __future__ import annotations

import pytest
from one_node import OneNode

from elastic_core.rendezvous.codec import decoded_state
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.state import left
from elastic_core.testing import FakeClock, SharedMemory, World


def test_who_steps_back_from_leading_does_not_keep_itself_busy(node):
    """A leader in its last call finds that another leads, and stops deciding; the end of the last call is nothing to
    wake up for any more, and again and again."""
    leader = node(last_call=3.0)
    leader.want()
    assert leader.keeper.leading
    other = node(leader.memory, leader.clock, "b", last_call=3.0)
    other.want()
    leader.keeper.withdraw()
    leader.keeper.turn()
    turns = 0
    while leader.clock.now() < 20.0:
        due = leader.keeper.turn()
        turns += 1
        leader.clock.advance(max(due - leader.clock.now(), 0.0))
        assert turns < 30


def test_two_leaders_become_one():
    world = World(RendezvousSettings("job", 1, 3, RendezvousTimeout(last_call=2.0)))
    for name in "abc":
        world.join(name)
        world.run(0.3)
    world.run(5.0)
    first, second, _ = world.members()
    world.freeze(first)
    world.run(9.0)  # the second leads now, and the round goes on without the first
    world.freeze(first, False)
    world.run(60.0)
    assert world.in_step()
    assert [name for name, node in world.nodes.items() if node.keeper.leading] == [world.members()[0]]
    assert second in world.members()


@pytest.mark.parametrize("seed", range(12))
def test_only_the_leader_that_died_is_called_lost(seed):
    """The one that takes over counts before it writes: the next in line must not take it for dead, too."""
    gone = set()
    world = World(RendezvousSettings("job", 1, 4, RendezvousTimeout(last_call=1.0)), seed)
    for i, name in enumerate("abcd"):
        world.join(name)
        world.run(0.07 * (1 + (seed * (i + 3)) % 13))
    world.run(10.0)
    assert world.in_step()
    leader = world.members()[0]
    world.run(0.083 * seed)
    world.crash(leader)
    world.memory.on_write = lambda _, after: gone.update(decoded_state(after).gone)
    world.run(30.0)
    assert gone == {f"{leader}/1"}
    assert len(world.members()) == 3


def test_two_that_die_with_the_leader_are_found_too():
    world = World(RendezvousSettings("job", 1, 5, RendezvousTimeout(last_call=1.0)))
    for name in "abcde":
        world.join(name)
        world.run(0.3)
    world.run(10.0)
    dead = world.members()[:2]
    for name in dead:
        world.crash(name)
    world.run(12.0)
    assert len(world.members()) == 3
    assert not set(dead) & set(world.members())


def test_who_waits_takes_over_at_once_when_all_members_have_left(node):
    member = node(max_nodes=1)
    member.want()
    spares = [node(member.memory, member.clock, name, max_nodes=1) for name in "bc"]
    for spare in spares:
        spare.want()
    member.keeper.amend(lambda state: left(state, "a/1", "goes"))
    member.keeper.turn()  # its entry is still there
    for spare in reversed(spares):
        spare.keeper.state_changed()
        spare.keeper.turn()
    assert [spare.keeper.leading for spare in spares] == [True, False]
    member.keeper.withdraw()
    member.keeper.turn()
    spares[0].run(member.settings.timeout.last_call + 0.5)
    assert [seat.key for seat in spares[0].state.seats] == ["b/1"]


def test_the_next_in_line_leads_at_once_when_the_leader_was_seen_to_go(pair):
    leader, other = pair
    assert leader.keeper.leading
    del leader.memory.entries["a/1"]
    leader.memory.vacant = True
    other.keeper.state_changed()
    other.keeper.turn()
    assert other.keeper.leading
    assert other.state.gone == ("a/1",)


def test_those_further_behind_wait_for_the_next_in_line():
    memory, clock = SharedMemory(), FakeClock()
    nodes = [OneNode(memory, clock, name, min_nodes=3, max_nodes=3) for name in "abc"]
    for one in nodes:
        one.want()
    nodes[0].keeper.roster_changed()
    for one in nodes:
        one.keeper.state_changed()
        one.keeper.turn()
    last = nodes[2]
    assert last.state.round == 1
    memory.vacant = True
    last.keeper.turn()
    assert not last.keeper.leading
    clock.advance(last.settings.window)
    last.keeper.turn()
    assert last.keeper.leading

"""Many nodes fail, leave or are lost together. The number of store operations until the next round grows linearly with
the number of nodes, not quadratically."""

import pytest
from one_node import WHERE, OneNode, meet

from elastic_core.errors import ProcessFailure
from elastic_core.rendezvous.effects import Announce, Idle, WriteState
from elastic_core.rendezvous.model import Cause

FEW, MANY = 8, 32
FAILURE = {0: ProcessFailure(local_rank=0, pid=1, exitcode=1, global_rank=0)}


def job(size, least=0):
    first = OneNode(name="00", min_nodes=size, max_nodes=size)
    others = [OneNode(first.memory, first.clock, f"{i:02}", size, size) for i in range(1, size)]
    nodes = [first, *others]
    for one in nodes:
        one.node.settings = first.settings
    meet(*nodes)
    for one in nodes:
        one.node.settings = one.settings = OneNode(min_nodes=least or size // 2, max_nodes=size).settings
        one.asked.clear()
    assert all(one.node.membership.running for one in nodes)
    return nodes


def interleaved(nodes):
    """Run one operation of each node in turn, then deliver the news. Time passes when all nodes rest."""
    memory, heard = nodes[0].memory, {one.key: (nodes[0].memory.writes, nodes[0].memory.rosters) for one in nodes}
    for _ in range(100 * len(nodes)):
        faults_forgotten = [isinstance(one.step(), Idle) for one in nodes]
        for one in nodes:
            writes, rosters = heard[one.key]
            if memory.writes != writes:
                one.node.state_changed()
            if memory.rosters != rosters and one.node.wants_roster:
                one.node.roster_changed()
            heard[one.key] = (memory.writes, memory.rosters)
        if nodes[0].state.round.number == 2:
            return
        if all(faults_forgotten):
            nodes[0].clock.advance(0.05)
    raise AssertionError(f"no second round: {nodes[0].node.progress()}")


def all_fail(nodes):
    for one in nodes:
        one.node.fail(FAILURE)
        one.node.want(WHERE)
    interleaved(nodes)


def half_leave(nodes):
    for one in nodes[1::2]:
        one.node.leave("received SIGTERM")
        one.node.retire("it was shut down")
    for one in nodes[::2]:
        one.node.want(WHERE)
    interleaved(nodes)


def half_are_lost(nodes):
    living = nodes[::2]
    for one, ended in zip(living, nodes[1::2], strict=True):
        one.node.lost(ended.key)
        one.node.want(WHERE)
    interleaved(living)


@pytest.mark.parametrize(
    ("event", "causes", "every"),
    [
        (all_fail, [Cause.FAILURE], 1),
        (half_leave, [Cause.LEFT], 2),
        (half_are_lost, [Cause.LOST, Cause.LEFT], 2),
    ],
)
def test_operations_grow_with_the_number_of_nodes(event, causes, every):
    counts = []
    for size in (FEW, MANY):
        nodes = job(size)
        event(nodes)
        assert nodes[0].state.end.cause in causes
        assert sorted(nodes[0].entries) == sorted(nodes[0].members) == [one.key for one in nodes[::every]]
        counts.append(sum(len(one.asked) for one in nodes))
        counts.append(sum(one.asked.count(WriteState) for one in nodes))
    grown = MANY / FEW
    assert counts[2] <= 1.5 * grown * counts[0]
    assert counts[3] <= 1.5 * grown * counts[1]


@pytest.mark.parametrize("watcher", [1, 2])
def test_lost_leaders_entry_does_not_delay_next_round(watcher):
    nodes = job(3)
    living, begun = nodes[1:], nodes[0].clock.now()
    nodes[watcher].node.lost(nodes[0].key)
    for one in living:
        one.node.want(WHERE)
    interleaved(living)
    assert living[0].members == [one.key for one in living]
    assert nodes[0].clock.now() - begun < 1.0


def test_leaving_node_gets_no_seat():
    """The leader reads the roster while the leaving node's entry is still ready for the round."""
    nodes = job(4)
    leader, leaver = nodes[0], nodes[3]
    nodes[1].node.fail(FAILURE)
    for one in (nodes[1], *nodes):
        one.settle()
        one.hear()
    leaver.node.want(WHERE)
    leaver.settle()
    leaver.node.retire("received SIGTERM")
    assert isinstance(leaver.settle()[-1], Announce)
    for one in nodes[:3]:
        one.node.want(WHERE)
    interleaved(nodes[:3])
    assert leader.members == [one.key for one in nodes[:3]]


def test_reported_failure_survives_its_node():
    """The leader does not read the roster."""
    nodes = job(4)
    nodes[3].node.fail({})
    nodes[3].settle()
    failed = nodes[2]
    failed.hear()
    failed.node.fail({0: ProcessFailure(local_rank=0, pid=1, exitcode=1, global_rank=2, curable=False)})
    failed.settle()
    assert not failed.state.closed
    failed.node.retire("its workers failed")
    failed.run(5.0)
    assert failed.state.closed
    assert failed.key not in failed.entries


def test_all_nodes_leave_although_the_leader_is_lost():
    counts = []
    for size in (FEW, MANY):
        nodes = job(size)
        for one in nodes[1:]:
            one.node.retire("received SIGTERM")
        for _ in range(40):
            for one in nodes[1:]:
                one.hear()
            nodes[0].clock.advance(0.1)
        assert list(nodes[0].entries) == [nodes[0].key]
        assert sorted(nodes[0].state.gone) == [one.key for one in nodes[1:]]
        counts.append(sum(len(one.asked) for one in nodes))
    assert counts[1] <= 1.5 * MANY / FEW * counts[0]


def test_many_ended_agents_are_all_removed():
    nodes = job(100, least=10)
    watcher, dead = nodes[9], [one.key for one in nodes[10:90]]
    living = nodes[:10] + nodes[90:]
    nodes[0].node.fail(FAILURE)
    for one in living:
        one.settle()
        one.hear()
    begun = nodes[0].clock.now()
    for key in dead:
        watcher.node.lost(key)
        watcher.hear()
        nodes[0].hear()
    for one in living:
        one.node.want(WHERE)
    interleaved(living)
    assert sorted(nodes[0].entries) == sorted(one.key for one in living)
    assert nodes[0].clock.now() - begun < 1.0

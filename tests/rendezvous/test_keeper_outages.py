"""A keeper whose store is out of reach, slow to answer, or loses answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.state import Report, closed, failed
from elastic_core.testing import MemoryBackend, World


def test_a_lost_answer_is_no_second_write(node):
    one = node(max_nodes=1)
    one.backend.lose_answers = 1  # the announcement lands, the node does not learn of it
    due = one.want()
    assert isinstance(one.keeper.view.outage, RendezvousConnectionError)
    assert due > one.clock.now()
    one.clock.advance(due - one.clock.now())
    one.keeper.turn()
    assert one.keeper.view.outage is None
    assert (one.state.round, one.memory.writes) == (1, 1)


def test_a_change_whose_answer_was_lost_is_made_once(node):
    one = node(max_nodes=1)
    one.want()
    ticket = one.keeper.amend(lambda state: closed(state, "a", "enough", succeeded=True))
    one.backend.lose_answers = 1
    due = one.keeper.turn()
    assert not ticket.done.is_set()
    one.clock.advance(due - one.clock.now())
    one.keeper.turn()
    assert ticket.done.is_set()
    assert (one.memory.writes, one.state.closed.reason) == (2, "enough")


def test_pauses_between_attempts_grow_to_a_second(node):
    one = node()
    one.backend.reachable = False
    pauses = []
    one.keeper.want(one.entry)
    for _ in range(10):
        due = one.keeper.turn()
        pauses.append(due - one.clock.now())
        one.clock.advance(pauses[-1])
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.1
    assert pauses[-1] == 1.0


def test_out_of_reach_counts_from_the_first_attempt_without_an_answer(node):
    one = node(max_nodes=1)
    one.want()
    assert one.keeper.out_of_reach_since() is None
    one.backend.reachable = False
    begun = one.clock.advance(1.0)
    for _ in range(4):
        one.clock.advance(max(one.keeper.turn() - one.clock.now(), 0.0))
    assert one.keeper.out_of_reach_since() == begun
    one.backend.reachable = True
    one.keeper.turn()
    assert one.keeper.out_of_reach_since() is None


class SlowBackend(MemoryBackend):
    """Every answer takes a while, and it can fail in words of its own."""

    def __init__(self, memory, clock):
        super().__init__(memory)
        self.clock = clock
        self.seconds = 0.0
        self.fault = None

    def get_state(self):
        return self._slowly(super().get_state)

    def roster(self):
        return self._slowly(super().roster)

    def beat(self, key, leading, look):
        if self.fault:
            raise self.fault
        return super().beat(key, leading, look)

    def _slowly(self, call):
        self.clock.advance(self.seconds)
        if self.fault:
            raise self.fault
        return call()


@pytest.fixture
def slow(node):
    one = node(max_nodes=1)
    one.backend = SlowBackend(one.memory, one.clock)
    one.keeper = Keeper(one.backend, one.settings, one.entry, one.clock, one.views.append)
    return one


def test_every_answer_of_a_long_turn_counts(slow):
    seen = []
    slow.want()
    slow.backend.seconds = 3.0
    slow.clock.advance(1.0)
    slow.keeper.state_changed()
    slow.keeper.amend(lambda state: seen.append(slow.keeper.out_of_reach_since()) or state)
    slow.keeper.turn()
    assert seen == [slow.clock.now() - 3.0]  # the state had just been read; the roster was read since
    assert slow.keeper.out_of_reach_since() is None


def test_an_outage_in_words_of_its_own_counts_as_one(slow):
    slow.want()
    slow.backend.fault = OSError("connection reset")
    begun = slow.clock.advance(1.0)
    for _ in range(8):
        slow.clock.advance(max(slow.keeper.turn() - slow.clock.now(), 0.0))
    assert slow.keeper.view.fault is slow.backend.fault
    assert slow.keeper.out_of_reach_since() == begun


def test_beats_go_on_through_faults_and_the_log_tells_once(slow, capsys):
    slow.want()
    slow.memory.state = (b"not ours", 7)
    slow.backend.calls.clear()
    slow.keeper.state_changed()
    for _ in range(20):
        slow.clock.advance(max(slow.keeper.turn() - slow.clock.now(), 0.0))
    assert isinstance(slow.keeper.view.fault, RendezvousStateError)
    assert slow.backend.calls["beat"] >= 10
    assert slow.clock.now() - slow.keeper.out_of_reach_since() <= 1.0
    assert capsys.readouterr().err.count("rendezvous fault") == 1


def test_after_an_outage_a_round_of_all_members_need_not_wait(pair):
    leader, other = pair
    leader.backend.reachable = False
    leader.clock.advance(1.0)
    leader.keeper.turn()
    leader.backend.reachable = True
    leader.clock.advance(1.0)
    leader.keeper.amend(lambda state: failed(state, 1, Report("b/1", "b", (), certain=True), 3))
    leader.want(after=1)
    assert not leader.state.open
    other.keeper.state_changed()
    other.want(after=1)
    leader.keeper.roster_changed()
    leader.keeper.turn()
    assert (leader.state.round, leader.state.open, len(leader.state.seats)) == (2, True, 2)


def test_an_attempt_that_hangs_is_told_once_by_another_thread(slow, capsys):
    slow.want()
    heartbeat = slow.settings.timeout.heartbeat
    assert slow.keeper.notice_silence() == slow.clock.now() + heartbeat
    told = []

    def hang(state):
        begun = slow.clock.now()
        told.append(slow.keeper.notice_silence() == begun + heartbeat)
        slow.clock.advance(heartbeat)
        told.append(slow.keeper.notice_silence() == begun + 2 * heartbeat)
        slow.keeper.notice_silence()
        return state

    slow.keeper.amend(hang)
    slow.keeper.turn()
    assert told == [True, True]
    assert capsys.readouterr().err.count("store out of reach: seconds=2.0") == 1


def test_a_change_that_others_always_overtake_is_an_outage(node):
    one = node(max_nodes=1)
    one.want()
    rival = MemoryBackend(one.memory)

    def overtaken(state):
        rival.set_state(*one.memory.state)
        return replace(state, restarts=state.restarts + 1)

    ticket = one.keeper.amend(overtaken)
    one.keeper.turn()
    assert "64 attempts" in str(one.keeper.view.outage)
    assert not ticket.done.is_set()


def test_after_an_outage_a_node_beats_though_the_state_cannot_be_read(node):
    one = node(max_nodes=1)
    one.want()
    one.backend.reachable = False
    one.clock.advance(1.0)
    one.keeper.turn()
    one.memory.forget()
    one.memory.state = (b"not ours", 99)
    one.backend.reachable = True
    one.run(5.0)
    assert isinstance(one.keeper.view.fault, RendezvousStateError)
    assert one.memory.entries["a/1"].beats >= 2


def test_after_an_outage_a_newcomer_need_not_wait():
    world = World(RendezvousSettings("job", 2, 3, RendezvousTimeout(last_call=1.0)))
    for name in "ab":
        world.join(name)
    world.run(3.0)
    assert len(world.members()) == 2
    for name in "ab":
        world.partition(name)
    world.run(2.0)
    for name in "ab":
        world.partition(name, reachable=True)
    world.run(1.5)
    world.join("c")
    world.run(0.5)
    assert len(world.members()) == 3

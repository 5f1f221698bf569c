"""The keeper, turned by hand on a fake clock over a memory in which things go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.absence import CONFIRM
from elastic_core.rendezvous.codec import decoded_entry, decoded_state
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.state import Report, State, closed, failed, left
from elastic_core.testing import FakeClock, MemoryBackend, SharedMemory, World


class OneNode:
    """A keeper, its clock and its backend."""

    def __init__(self, memory=None, clock=None, name="a", min_nodes=1, max_nodes=2, **timeouts):
        self.memory = memory or SharedMemory()
        self.clock = clock or FakeClock()
        self.backend = MemoryBackend(self.memory)
        self.settings = RendezvousSettings("job", min_nodes, max_nodes, RendezvousTimeout(**timeouts))
        self.entry = entry_of(Node(name, host=name), f"{name}/1")
        self.views = []
        self.keeper = Keeper(self.backend, self.settings, self.entry, self.clock, self.views.append)

    def want(self, **changes):
        self.entry = replace(self.entry, **changes)
        self.keeper.want(self.entry)
        return self.keeper.turn()

    def run(self, seconds, step=0.25):
        """Turn when it is due, and with news whenever there is some."""
        until = self.clock.now() + seconds
        due = self.clock.now()
        while self.clock.now() < until:
            if self.keeper.view.token != self.memory.writes:
                self.keeper.state_changed()
                due = self.clock.now()
            if self.clock.now() >= due:
                due = self.keeper.turn()
            self.clock.advance(step)

    @property
    def state(self):
        return decoded_state(self.memory.state[0])


@pytest.fixture
def node():
    return OneNode


@pytest.fixture
def pair():
    """Two nodes in a round, the leader first."""
    leader = OneNode()
    other = OneNode(leader.memory, leader.clock, "b")
    leader.want()
    other.want()
    leader.keeper.roster_changed()
    leader.keeper.turn()
    other.keeper.state_changed()
    other.keeper.turn()
    assert (leader.state.round, leader.state.open, len(leader.state.seats)) == (1, True, 2)
    return leader, other


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


def test_a_bad_entry_stays_outside(node, capsys):
    one = node(last_call=1.0)
    one.backend.announce("stranger/1", b"not an entry")
    one.want()
    one.run(30.0)
    assert [seat.key for seat in one.state.seats] == ["a/1"]
    assert capsys.readouterr().err.count("entry not readable") == 1


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

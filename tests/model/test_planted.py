"""Faults that were in here once, or might be, are planted again: the explorer or a story finds each.

A few lie outside what a node and its agent decide, and are seen by tests of their own:

| what went wrong | what sees it |
|---|---|
| a dead entry pinned the log of a store | rendezvous/test_over_store.py: nodes_that_died_..._leave_few_keys |
| the host of the store was told to go | plugins/elastic-c10d/tests/test_takeover.py |
| tests depended on SIGHUP | workers/test_functions.py |
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_testing import MemoryBackend, SharedMemory, World, eventually
from elastic_testing.store_model import StoreModel
from search import Found, explore
from small_world import Rules

from elastic_core.agent import RunResult, WorkerState, supervise
from elastic_core.agent.supervise import Order, RestartBudget
from elastic_core.clock import LONG_AGO, Instant, SystemClock
from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces import node as described
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.rendezvous import handler, membership, model, policy
from elastic_core.rendezvous.connection import Connection
from elastic_core.rendezvous.driver import Driver
from elastic_core.rendezvous.effects import WriteState
from elastic_core.rendezvous.election import Election
from elastic_core.rendezvous.model import Cause, Entry, RoundId
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.observation import Observation
from elastic_core.rendezvous.policy import Write, decide
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

HOME = "elastic_core.rendezvous"
MOST_LINES = 200


@pytest.fixture
def found(capsys):
    """Searches, and gives back what it found, which has to be there."""

    def found(rules, world, events, settle=False):
        with pytest.raises(Found) as caught:
            explore(rules, world, events, settle)
        with capsys.disabled():
            print(f"\n  explorer: {caught.value.what}, after {len(caught.value.story)} steps")
        assert len(caught.value.story) <= MOST_LINES
        return caught.value.what

    return found


# -- faults in the policy


def takes_late_for_ready(roster, state, settings, *rest):
    """Seats a node that it has called lost, by an entry of before."""
    back = tuple(
        replace(seen, entry=replace(seen.entry, after=state.round), late=False)
        if seen.entry.key in state.gone
        else seen
        for seen in roster
    )
    return decide(back, state, settings, *rest)


def overlooks_the_lost(roster, state, settings, *rest):
    return decide(tuple(replace(seen, late=False) for seen in roster), state, settings, *rest)


def counts_again(roster, state, settings, *rest):
    """Uses a restart for a failure when the round after it forms, though the report had counted it."""
    decision = decide(roster, state, settings, *rest)
    formed = isinstance(decision, Write) and decision.state.round != state.round
    if formed and state.end and state.end.counted:
        return Write(replace(decision.state, restarts=decision.state.restarts + 1), decision.reason)
    return decision


def lets_drained_nodes_in(roster, state, settings, *rest):
    decision = decide(roster, replace(state, draining=()), settings, *rest)
    if isinstance(decision, Write):
        return Write(replace(decision.state, draining=state.draining), decision.reason)
    return decision


def does_not_wait_for_workers(roster, state, settings, *rest):
    """With a spare present, the next round began while a live member's workers were still writing a checkpoint."""
    quick = tuple(replace(seen, entry=replace(seen.entry, stop_timeout=0.0)) for seen in roster)
    return decide(quick, state, replace(settings, keep_alive_interval=0.01), *rest)


FAULTS = [
    (takes_late_for_ready, 2, ("is cut off",), "was seated while its old workers run"),
    (overlooks_the_lost, 2, ("crashes",), "b/1 are there, and b/1 are in the round"),
    (counts_again, 2, ("fails",), "a failure was counted twice"),
    (lets_drained_nodes_in, 1, ("is drained",), "a node that is drained was seated"),
    (does_not_wait_for_workers, 2, ("fails",), "still works"),
]


@pytest.mark.parametrize(("fault", "first", "happens", "what"), FAULTS, ids=[case[0].__name__ for case in FAULTS])
def test_a_fault_in_the_policy_is_found(found, monkeypatch, fault, first, happens, what):
    stops = {"a": 5, "b": 5} if fault is does_not_wait_for_workers else None
    rules = Rules(1, 2, "ab", happens, max_restarts=2, stops=stops)
    world = rules.running(first)
    monkeypatch.setattr(f"{HOME}.node.decide", fault)
    assert what in found(rules, world, 1, settle=fault is overlooks_the_lost)


def test_a_round_of_too_few_is_found(found):
    def forms_with_one(entry, settings):
        return Node(entry, replace(settings, min_nodes=1))

    rules = Rules(2, 2, "ab", make=forms_with_one)
    assert found(rules, rules.empty(), 0) == "a round of too few or too many members"


# -- faults in what is seen of the others


def test_looks_before_and_after_an_outage_that_count_together_are_found(found, monkeypatch):
    rules = Rules(1, 2, "ab", ("the store sleeps",))
    world = rules.running(2)
    monkeypatch.setattr(Observation, "after_outage", lambda self, now: self)
    assert "called lost, and was heard within the failure timeout" in found(rules, world, 1, settle=True)


def test_a_first_in_line_that_is_held_to_be_gone_too_soon_is_found(found, monkeypatch):
    rules = Rules(1, 2, "ab", ("is cut off",))
    world = rules.running(2)
    monkeypatch.setattr(f"{HOME}.observation.SURELY", 0.5)
    assert "called lost, and was heard within the failure timeout" in found(rules, world, 1)


def test_success_that_is_forgotten_when_its_entry_goes_is_found(found, monkeypatch):
    """Over etcd an agent that died after its workers succeeded ended the round of the others."""
    rules = Rules(1, 2, "ab", ("succeeds", "crashes"), leases=True)
    world = rules.after(rules.running(2), "b/1 succeeds")
    monkeypatch.setattr(f"{HOME}.policy.succeeded", lambda state, keys, number: state)
    assert found(rules, world, 1) == "healthy workers were stopped for a node that is done"


def test_a_state_that_is_decided_about_by_an_older_roster_is_found(found):
    """Who announced itself in between looks as if it had no entry."""

    class Hasty(Node):
        def _adopt_state(self, state, token, now):
            super()._adopt_state(state, token, now)
            self.seen = replace(self.seen, settled=LONG_AGO)
            self._roster_stale = not self.seen.looked
            self._judge(now)

    rules = Rules(1, 2, "ab", ("freezes",), leases=True, make=Hasty)
    assert "called lost, and was heard within the failure timeout" in found(rules, rules.running(1), 1)


# -- faults in changes of the state, and in the store


def test_who_goes_after_the_job_was_closed_and_writes_it_down_is_found(found, monkeypatch):
    actual = model.left

    def left(state, key, reason):
        told = actual(replace(state, closed=None), key, reason)
        return state if told.gone == state.gone else replace(told, closed=state.closed)

    rules = Rules(1, 2, "ab", ("fails",), max_restarts=0)
    world = rules.running(2)
    monkeypatch.setattr(model, "left", left)
    assert found(rules, world, 1) == "something was written after the job was closed"


def test_a_drain_that_ends_the_round_though_the_node_is_done_is_found(found, monkeypatch):
    """It restarted everybody, and could lose the job."""

    def drained(state, key):
        if state.closed or key in state.draining:
            return state
        asked = replace(state, draining=(*state.draining, key))
        running = state.open and state.seated(key)
        return model.ended(asked, Cause.DRAINED, state.names([key])[0], "drained") if running else asked

    rules = Rules(1, 2, "ab", ("succeeds", "is drained"))
    world = rules.running(2)
    monkeypatch.setattr(model, "drained", drained)
    assert found(rules, world, 2) == "healthy workers were stopped for a node that is done"


def test_a_round_of_others_that_is_taken_for_the_own_is_found(found, monkeypatch):
    """In a store that lost its memory one may form with the same number."""

    def verdict(state, key, round_id):
        mine = state.open and state.round.number == round_id.number and not state.closed
        return None if mine else membership.verdict(state, key, round_id)

    rules = Rules(1, 1, "aa", ("the store forgets",))
    world = rules.running(1)
    monkeypatch.setattr(f"{HOME}.node.verdict", verdict)
    assert "which does not run, and the store answers it" in found(rules, world, 1)


HOST_RESTARTED = ("b/1 crashes", "the store forgets")


@pytest.mark.parametrize("bounds", [(1, 2), (2, 2)])
def test_rounds_that_only_their_numbers_identify_are_found(found, monkeypatch, bounds):
    """Two nodes ran in different groups, and both were in round 1."""
    monkeypatch.setattr(RoundId, "__eq__", lambda one, other: one.number == other.number)
    monkeypatch.setattr(RoundId, "__ne__", lambda one, other: one.number != other.number)
    monkeypatch.setattr(RoundId, "__hash__", lambda one: one.number)
    rules = Rules(*bounds, "ab", ("is interrupted",), make=AnnouncesAsBefore)
    what = found(rules, rules.after(rules.running(2), *HOST_RESTARTED), 1)
    assert what in ("a/1 was seated while its old workers run", SPLIT)


class AnnouncesAsBefore(Node):
    def _unregister(self):
        self.registered = None


SPLIT = "two groups run round 1: ('a/1', 'b/1') and ('a/1', 'b/9')"


@pytest.mark.parametrize("bounds", [(1, 2), (2, 2)])
def test_a_member_that_looks_ready_in_a_store_that_forgot_is_found(found, bounds):
    rules = Rules(*bounds, "ab", ("is interrupted",), make=AnnouncesAsBefore)
    world = rules.after(rules.running(2), *HOST_RESTARTED)
    assert found(rules, world, 1) == "a/1 was seated while its old workers run"


def test_writes_that_ignore_the_token_are_found(found):
    rules = Rules(1, 2, "ab", ("fails", "leaves", "is interrupted"), fenced=False)
    world = rules.after(rules.running(2), "a/1 fails")
    assert found(rules, world, 2) in ("a node came back into a round", "more restarts than allowed")


def test_an_entry_that_is_written_late_over_a_newer_one_is_found(found, monkeypatch):
    """Over etcd nothing formed then."""
    fenced = StoreModel._announced
    rules = Rules(2, 2, "ab", ("fails", "is late"))
    world = rules.after(rules.empty(), "a/1 comes", "b/1 comes", "b/1: looks", "b/1: ReadState", "b/1 is late")
    for _ in range(8):
        world = rules.quiet(world)
    explore(rules, world, 1)
    monkeypatch.setattr(StoreModel, "_announced", lambda self, *what: fenced(self._replace(last=()), *what))
    assert found(rules, world, 1, settle=True) == "nothing bad happens any more, and yet no round forms"


# -- stories: each says whether all went well


def world(*bounds, count=3, kind=World, lease=None, grace=0.0, max_restarts=()):
    timeout = RendezvousTimeout(close=20)
    settings = RendezvousSettings("job", *bounds, timeout, lease_ttl=lease)
    job = kind(settings, leases=lease is not None, grace=grace)
    for number in range(count):
        job.join(f"n{number}", max_restarts=dict(enumerate(max_restarts)).get(number, 3))
    job.run(8)
    return job


def the_store_sleeps_for_30_seconds():
    """It is the only one, so that nobody can be called gone, or calls others gone, while it does."""
    job = world(2, 2, count=2, grace=30.0)
    job.sleep()
    job.run(30)
    job.sleep(asleep=False)
    job.run(30)
    return [[(it.number, rank) for it, rank in node.rounds] for node in job.nodes.values()] == [[(1, 0)], [(1, 1)]]


def the_store_is_away_for_60_seconds():
    """That is too long: all stop their workers, and meet again in one round, which costs no restart."""
    job = world(2, 3, grace=20.0)
    for name in job.nodes:
        job.partition(name)
    job.run(60)
    stopped = not any(node.works_in for node in job.nodes.values())
    for name in job.nodes:
        job.partition(name, reachable=True)
    job.run(30)
    return stopped and job.in_step() and (job.state.round.number, job.state.restarts) == (2, 0)


def who_hosts_the_store_is_done_first():
    """Its time in the exit barrier is over. If it goes, the store goes with it."""
    job = world(2, 2, count=2)
    job.succeed("n0")
    done = supervise.Observation(RunResult(WorkerState.SUCCEEDED))
    decision = supervise.await_others(RestartBudget(3), done, Instant(301.0), Instant(300.0), hosts_store=True)
    if Order.RETIRE in decision.orders:
        job.leave("n0")
        job.partition("n1")
    job.run(60)
    return job.nodes["n1"].works_in.number == 1


def a_spare_that_died_long_ago():
    """The dead spare is older than the live one; then the node that leads dies too."""
    job = world(2, 2)
    job.crash(next(name for name in job.nodes if name not in job.members()))
    job.run(60)
    job.join("n3")
    job.run(2)
    leader, other = job.members()
    job.crash(leader)
    job.run(30)
    return len(job.store.rows) == 2 and job.state.round.number == 2 and job.members() == [other, "n3"]


def an_agent_that_is_killed_and_started_again():
    """The store holds its old entry for as long as its lease."""
    job = world(1, 2, count=2, lease=30.0)
    job.crash("n1")
    job.join("n2", called="n1")
    job.run(90)
    return job.members() == ["n0", "n1"]


class Stubborn(World):
    """What n0 writes of the state is refused."""

    refuses = False

    def _answer(self, node, operation, now):
        if self.refuses and node.name == "n0" and isinstance(operation, WriteState):
            node.machine.broke(RendezvousStateError("too large"), now)
        else:
            super()._answer(node, operation, now)


def a_leader_that_cannot_write():
    job = world(2, 3, kind=Stubborn)
    job.refuses = True
    job.crash("n2")
    job.run(60)
    return not job.state.seated("n2/1") or job.state.round.number > 1


class Watched(MemoryBackend):
    """Knows whether its node waits for others to come."""

    waits = False

    def wait_for_roster(self, timeout, more=1):
        self.waits = not super().wait_for_roster(0.0)  # else it has something to do
        try:
            return super().wait_for_roster(timeout, more)
        finally:
            self.waits = False


def who_leaves_while_nodes_gather():
    """Its next beat is far away."""
    settings = RendezvousSettings("job", 2, 2, RendezvousTimeout(), keep_alive_interval=100.0)
    node = Node(Entry.of(described.Node("a"), "a/1"), settings)
    backend = Watched(SharedMemory())
    driver = Driver(node, backend, SystemClock())
    driver.ask(lambda node, now: node.begin(now))
    driver.tell(lambda node: node.want(RendezvousStoreInfo("a", 1)))
    driver.start()
    try:
        eventually(lambda: driver.ask(lambda node, now: node.election.leading) and backend.waits)
        return driver.carry_out(lambda node: node.retire("asked to"), 3.0)
    finally:
        driver.stop()


def a_node_that_left():
    job = world(1, 3)
    job.leave("n1")
    job.nodes["n1"].machine.begin(job.clock.now())
    job.nodes["n1"].join(job.clock.now())
    job.run(20)
    return "n1" not in job.members()


def who_fails_allows_fewer_restarts_than_others():
    job = world(2, 2, count=2, max_restarts=(0, 3))
    job.fail("n0")
    job.run(20)
    return not job.state.closed and job.state.restarts == 1


def nodes_that_do_not_reach_each_other():
    job = world(1, 3)
    job.separate("n1", "n2")
    job.run(120)
    return len(job.members()) == 2


def agents_in_containers_of_one_host_name():
    """Each is process 1 there."""
    job = world(1, 3, count=0)
    for name in ("x", "y"):
        job.join(name, called=handler.anonymous_node("box").name)
    job.run(60)
    return len(job.members()) == 2


# -- and the faults that they tell of


def granting_no_grace(what):
    return lambda self, asked, grace, now: what(self, asked, 0.0, now)


def joining_unless_cut_off(want):
    return lambda node, *where: None if node.membership.cut_off else want(node, *where)


def leaving_in_time(await_others):
    return lambda budget, seen, now, until, hosts_store: await_others(budget, seen, now, until)


def beats_that_may_be_missing(_):
    return property(lambda settings: settings.keep_alive_interval * settings.keep_alive_max_attempt)


def beginning_again(begin):
    def begin_again(node, now):
        begin(node, now)
        node.membership = replace(node.membership, left=False)

    return begin_again


def with_its_own_limit(failed):
    def judged(state, number, report):
        seen = replace(state, max_restarts=int(report.key[1]) * 3)
        told = failed(seen, number, report)
        return state if told is seen else told

    return judged


STORIES = [
    (the_store_sleeps_for_30_seconds, granting_no_grace, (Connection, "fenced"), (Connection, "fence_at")),
    (the_store_is_away_for_60_seconds, joining_unless_cut_off, (Node, "want")),
    (who_hosts_the_store_is_done_first, leaving_in_time, (supervise, "await_others")),
    (a_spare_that_died_long_ago, lambda dead: lambda self, state, now: None, (Observation, "dead")),
    (an_agent_that_is_killed_and_started_again, beats_that_may_be_missing, (RendezvousSettings, "failure_timeout")),
    (a_leader_that_cannot_write, lambda failed: lambda self, now: self, (Election, "failed")),
    (who_leaves_while_nodes_gather, lambda wake: lambda self: None, (Driver, "wake")),
    (a_node_that_left, beginning_again, (Node, "begin")),
    (who_fails_allows_fewer_restarts_than_others, with_its_own_limit, (model, "failed")),
    (nodes_that_do_not_reach_each_other, lambda meeting: lambda ready, least: ready, (policy, "_meeting")),
    (agents_in_containers_of_one_host_name, lambda name: lambda host: f"{host}:1", (described, "made_up_name")),
]


@pytest.mark.parametrize(("story", "fault", "places"), [(s, f, p) for s, f, *p in STORIES])
def test_a_story_tells_a_fault(monkeypatch, story, fault, places):
    assert story()
    for owner, name in places:
        monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    assert not story()

"""Faults that were in here once, or might be, are planted again: the explorer or a story of a `World` finds each.

Those that do not lie in a decision are seen by other tests:

| what went wrong | what sees it |
|---|---|
| the pause of the only store ended the round | e2e/test_loss_and_silence.py: a_suspended_host_of_the_store |
| a node that was cut off left for good | agent/test_fence.py |
| the host of the store left before the others | e2e/test_loss_and_silence.py: the_host_of_the_store_stays |
| entries of the dead pinned the log of a store | rendezvous/test_over_store.py: nodes_that_died_..._leave_few_keys |
| the length of a lease was not known to the policy | e2e/test_loss_and_silence.py: an_agent_comes_back_under_its_name |
| leaving waited for the next beat | e2e/test_loss_and_silence.py: who_leaves_while_nodes_gather |
| a failure was judged by the reporter's own limit | rendezvous/test_policy.py |
| the host of the store was told to go | plugins/elastic-c10d/tests/test_takeover.py |
| two agents had one host name and one pid | e2e/test_loss_and_silence.py: two_agents_that_are_process_1 |
| tests depended on SIGHUP | workers/test_functions.py |
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from search import Found, explore
from small_world import Rules

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous import membership, model
from elastic_core.rendezvous.effects import WriteState
from elastic_core.rendezvous.election import Election
from elastic_core.rendezvous.model import Cause
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.observation import Observation
from elastic_core.rendezvous.policy import Write, decide
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.testing import World
from elastic_core.testing.store_model import StoreModel

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
    formed = isinstance(decision, Write) and decision.state.round > state.round
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
    (does_not_wait_for_workers, 2, ("fails",), "still runs workers of round 1"),
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
    assert "called lost, and was heard within the window" in found(rules, world, 1, settle=True)


def test_a_first_in_line_that_is_held_to_be_gone_too_soon_is_found(found, monkeypatch):
    rules = Rules(1, 2, "ab", ("is cut off",))
    world = rules.running(2)
    monkeypatch.setattr(f"{HOME}.observation.SURELY", 0.5)
    assert "called lost, and was heard within the window" in found(rules, world, 1)


def test_success_that_is_forgotten_when_its_entry_goes_is_found(found, monkeypatch):
    """Over etcd an agent that died after its workers succeeded ended the round of the others."""
    rules = Rules(1, 2, "ab", ("succeeds", "crashes"), leases=True)
    world = rules.after(rules.running(2), "b/1 succeeds")
    monkeypatch.setattr(f"{HOME}.policy.succeeded", lambda state, keys, number: state)
    assert found(rules, world, 1) == "healthy workers were stopped for a node that is done"


# -- faults in changes of the state, and in the store


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

    def verdict(state, key, number):
        mine = state.open and state.round == number and not state.closed
        return None if mine else membership.verdict(state, key, number)

    rules = Rules(1, 1, "aa", ("the store forgets",))
    world = rules.running(1)
    monkeypatch.setattr(f"{HOME}.node.verdict", verdict)
    assert "which does not run, and the store answers it" in found(rules, world, 1)


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


# -- stories


def world(kind, *bounds, count, seed=0):
    job = kind(RendezvousSettings("job", *bounds, RendezvousTimeout(close=20)), seed)
    for number in range(count):
        job.join(f"n{number}")
    job.run(8)
    return job


def a_spare_that_died_long_ago(job):
    """The dead spare is older than the live one; then the node that leads dies too."""
    job.crash(next(name for name in job.nodes if name not in job.members()))
    job.run(60)
    job.join("n3")
    job.run(2)
    leader, other = job.members()
    job.crash(leader)
    job.run(30)
    return len(job.store.rows) == 2 and job.state.round == 2 and job.members() == [other, "n3"]


class Stubborn(World):
    """What n0 writes of the state is refused."""

    refuses = False

    def _answer(self, node, operation, now):
        if self.refuses and node.name == "n0" and isinstance(operation, WriteState):
            node.machine.broke(RendezvousStateError("too large"), now)
        else:
            super()._answer(node, operation, now)


def a_leader_that_cannot_write(job):
    job.refuses = True
    job.crash("n2")
    job.run(60)
    return not job.state.seated("n2/1") or job.state.round > 1


def a_node_that_left(job):
    job.leave("n1")
    job.nodes["n1"].machine.begin(job.clock.now())
    job.nodes["n1"].join(job.clock.now())
    job.run(20)
    return "n1" not in job.members()


def nodes_that_do_not_reach_each_other(job):
    job.separate("n1", "n2")
    job.run(120)
    return len(job.members()) == 2


def begin_again(node, now):
    node.membership = replace(node.membership.begins(now, node.settings.timeout.join), left=False)


STORIES = [
    ("the dead stay", (Observation, "dead", lambda self, state, now: None), World, (2, 2), a_spare_that_died_long_ago),
    (
        "who cannot work leads on",
        (Election, "failed", lambda self, now: self),
        Stubborn,
        (2, 3),
        a_leader_that_cannot_write,
    ),
    ("begin undoes leave", (Node, "begin", begin_again), World, (1, 3), a_node_that_left),
    (
        "all meet",
        (f"{HOME}.policy._meeting", lambda ready, least: ready),
        World,
        (1, 3),
        nodes_that_do_not_reach_each_other,
    ),
]


@pytest.mark.parametrize(("fault", "kind", "bounds", "story"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES])
def test_a_story_tells_a_fault(monkeypatch, fault, kind, bounds, story):
    assert story(world(kind, *bounds, count=3))
    monkeypatch.setattr(*fault)
    assert not story(world(kind, *bounds, count=3))

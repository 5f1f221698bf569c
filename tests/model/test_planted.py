"""The explorer finds planted faults, so it is not blind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search import Found, explore
from small_world import Rules

from elastic_core.rendezvous.connection import Connection
from elastic_core.rendezvous.model import RoundId
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.policy import Write, decide

MOST_LINES = 200


@pytest.fixture
def found(capsys):
    """Function that runs a search that must find a violation. Returns the violation."""

    def found(rules, world, events, settle=False):
        with pytest.raises(Found) as caught:
            explore(rules, world, events, settle)
        with capsys.disabled():
            print(f"\n  explorer: {caught.value.what}, after {len(caught.value.story)} steps")
        assert len(caught.value.story) <= MOST_LINES
        return caught.value.what

    return found


def takes_late_for_ready(roster, state, settings, *rest):
    """Seats a node that was considered lost, because of its old entry."""
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
    """Uses a restart for a failure when the next round forms, although the report was already counted."""
    decision = decide(roster, state, settings, *rest)
    formed = isinstance(decision, Write) and decision.state.round != state.round
    if formed and state.end and state.end.counted:
        return Write(replace(decision.state, restarts=decision.state.restarts + 1), decision.reason)
    return decision


def lets_drained_nodes_in(roster, state, settings, *rest):
    decision = decide(roster, replace(state, draining={}), settings, *rest)
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
def test_planted_policy_fault_is_found(found, monkeypatch, fault, first, happens, what):
    stops = {"a": 5, "b": 5} if fault is does_not_wait_for_workers else None
    rules = Rules(1, 2, "ab", happens, max_restarts=2, stops=stops)
    world = rules.running(first)
    monkeypatch.setattr("elastic_core.rendezvous.node.decide", fault)
    assert what in found(rules, world, 1, settle=fault is overlooks_the_lost)


HOST_RESTARTED = ("b/1 crashes", "the store forgets")


class AnnouncesAsBefore(Node):
    def _unregister(self):
        self.registered = None


def test_member_that_announces_itself_as_ready_before_giving_back_is_found(found):
    rules = Rules(1, 2, "ab", ("is interrupted",), make=AnnouncesAsBefore)
    world = rules.after(rules.running(2), *HOST_RESTARTED)
    assert found(rules, world, 1) == "a/1 was seated while its old workers run"


def test_rounds_without_an_identity_are_found(found, monkeypatch):
    """If rounds are identified by their numbers alone, two nodes may run in different groups, both in round 1."""
    monkeypatch.setattr(RoundId, "__eq__", lambda one, other: one.number == other.number)
    monkeypatch.setattr(RoundId, "__ne__", lambda one, other: one.number != other.number)
    monkeypatch.setattr(RoundId, "__hash__", lambda one: one.number)
    rules = Rules(1, 2, "ab", ("is cut off",))
    world = rules.after(rules.running(2), *HOST_RESTARTED)
    assert found(rules, world, 1) == "two groups run round 1: ('a/1', 'b/1') and ('b/9',)"


def never_fenced(connection, grace, now):
    return now + 1_000.0


def test_member_that_never_stops_is_found_though_the_store_forgot(found, monkeypatch):
    monkeypatch.setattr(Connection, "fence_at", never_fenced)
    monkeypatch.setattr(Connection, "fenced", lambda connection, grace, now: (connection, False))
    rules = Rules(1, 2, "ab", ("is cut off",))
    world = rules.after(rules.running(2), *HOST_RESTARTED)
    assert "its fencing bound has passed" in found(rules, world, 1)


class CountsFromAnswers(Connection):
    """Counts from the arrival of the last answer, and other nodes from the arrival of the heartbeat."""

    def answered(self, now, renews=False, confirms=False):
        after = super().answered(now, renews, confirms)
        return replace(after, renewed=now) if renews else after


class CountsBelatedHeartbeats(Connection):
    """Counts a heartbeat for which the other nodes had no longer waited."""

    def answered(self, now, renews=False, confirms=False):
        after = super().answered(now, renews, confirms)
        return replace(after, renewed=self.asked, belated=None) if renews else after


LATE_FENCES = [
    (CountsFromAnswers, "is cut off at work", ("b/1: looks", "b/1 waits for its answer")),
    (CountsBelatedHeartbeats, "waits for its answer", ("b/1 freezes",)),
]


@pytest.mark.parametrize(("fault", "event", "before"), LATE_FENCES, ids=[case[0].__name__ for case in LATE_FENCES])
def test_member_that_stops_too_late_is_found(found, fault, event, before):
    class Late(Node):
        def __init__(self, entry, settings):
            super().__init__(entry, settings)
            self.connection = fault(settings)

    rules = Rules(1, 2, "ab", (event,), make=Late)
    world = rules.after(rules.running(2), *before)
    assert "its fencing bound has passed" in found(rules, world, 1)


def test_writes_that_ignore_the_token_are_found(found):
    rules = Rules(1, 2, "ab", ("is interrupted",), fenced=False)
    world = rules.after(rules.running(2), "a/1 fails", "b/1 leaves")
    assert found(rules, world, 1) == "a node came back into a round"

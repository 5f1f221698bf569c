"""Everything that can happen to two or three nodes, tried.

A tick is a unit in which every node may act once, in any order. A run of t ticks with n nodes is then one of n * t
actions at most, so the search through all runs of n * t actions, of whomever, in any order, contains all runs of t
ticks (and others, in which one node acts more often). Coming counts as an action. Every world that comes up is also
left alone: nothing bad happens any more, nodes act in turn, time passes when nobody has anything to do; then a round
must form with everybody who can be in it, or the job be over, within a bounded number of turns.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from search import Found, explore
from small_world import Rules

from elastic_core.rendezvous.decide import Write, decide

nightly = pytest.mark.skipif(
    os.environ.get("ELASTIC_NIGHTLY") != "1", reason="minutes of searching: set ELASTIC_NIGHTLY=1"
)
MOST_TURNS = 20
PATIENT = pytest.mark.timeout(900)  # half a minute of work for one processor, which others may want too


@pytest.fixture
def told(capsys):
    """Prints what a search went through, whether it is asked for or not."""

    def tell(name, search):
        with capsys.disabled():
            print(f"\n  explorer: {name}: {search}")

    return tell


TWO_NODES = [
    ("1:2, nobody there yet", (1, 2), lambda rules: rules.empty(2), 59_000),
    ("1:2, both run", (1, 2), lambda rules: rules.running(2), 240_000),
    ("2:2, nobody there yet", (2, 2), lambda rules: rules.empty(2), 31_000),
    ("2:2, both run", (2, 2), lambda rules: rules.running(2), 150_000),
]


@PATIENT
@pytest.mark.parametrize(("name", "bounds", "start", "floor"), TWO_NODES, ids=[case[0] for case in TWO_NODES])
def test_two_nodes_over_six_ticks(name, bounds, start, floor, told):
    rules = Rules(*bounds, wrongly_late=True)
    search = explore(rules, [start(rules)], actions=12)
    told(f"2 nodes, 6 ticks, {name}", search)
    assert search.worlds >= floor
    assert search.sweeps <= MOST_TURNS


THREE_NODES = [
    ("1:3, nobody there yet", (1, 3), lambda rules: rules.empty(3), 10_000),
    ("2:3, nobody there yet", (2, 3), lambda rules: rules.empty(3), 5_000),
]
THREE_RUNNING = [
    ("1:2, two run, one may come", (1, 2), lambda rules: rules.running(2, 1), 550_000),
    ("2:2, two run, one may come", (2, 2), lambda rules: rules.running(2, 1), 400_000),
    ("2:3, all run", (2, 3), lambda rules: rules.running(3), 550_000),
]


@PATIENT
@pytest.mark.parametrize(("name", "bounds", "start", "floor"), THREE_NODES, ids=[case[0] for case in THREE_NODES])
def test_three_nodes_over_three_ticks(name, bounds, start, floor, told):
    rules = Rules(*bounds, wrongly_late=True)
    search = explore(rules, [start(rules)], actions=9)
    told(f"3 nodes, 3 ticks, {name}", search)
    assert search.worlds >= floor
    assert search.sweeps <= MOST_TURNS


@nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "bounds", "start", "floor"), THREE_RUNNING, ids=[case[0] for case in THREE_RUNNING])
def test_three_nodes_over_three_ticks_from_a_running_round(name, bounds, start, floor, told):
    rules = Rules(*bounds, wrongly_late=True)
    search = explore(rules, [start(rules)], actions=9)
    told(f"3 nodes, 3 ticks, {name}", search)
    assert search.worlds >= floor
    assert search.sweeps <= MOST_TURNS


# -- faults that are planted are found


def forms_with_one(roster, state, settings, now, enough_since):
    return decide(roster, state, replace(settings, min_nodes=1), now, enough_since)


def takes_late_for_ready(roster, state, settings, now, enough_since):
    """Seats a node that it has called lost, by an entry of before."""
    back = tuple(
        replace(seen, entry=replace(seen.entry, after=state.round)) if seen.entry.key in state.gone else seen
        for seen in roster
    )
    return decide(back, state, settings, now, enough_since)


def overlooks_the_lost(roster, state, settings, now, enough_since):
    there = tuple(replace(seen, late=False) for seen in roster)
    return decide(there, state, settings, now, enough_since)


def goes_on_after_closing(roster, state, settings, now, enough_since):
    return decide(roster, replace(state, closed=None), settings, now, enough_since)


def counts_again(roster, state, settings, now, enough_since):
    """Uses a restart for a failure when the round after it forms, though the report had counted it."""
    decision = decide(roster, state, settings, now, enough_since)
    formed = isinstance(decision, Write) and decision.state.round > state.round
    if formed and state.end and state.end.counted:
        return Write(replace(decision.state, restarts=decision.state.restarts + 1), decision.reason)
    return decision


def lets_drained_nodes_in(roster, state, settings, now, enough_since):
    decision = decide(roster, replace(state, draining=()), settings, now, enough_since)
    if isinstance(decision, Write):
        return Write(replace(decision.state, draining=state.draining), decision.reason)
    return decision


FAULTS = [
    (forms_with_one, (2, 2), "empty", "a round of too few or too many members"),
    (takes_late_for_ready, (2, 2), "running", "was seated before it announced itself anew"),
    (overlooks_the_lost, (1, 2), "running", "nothing bad happens any more, and yet no round forms"),
    (goes_on_after_closing, (1, 2), "running", "something was written after the job was closed"),
    (counts_again, (1, 2), "running", "a failure was counted twice"),
    (lets_drained_nodes_in, (1, 2), "running", "a node that is drained was seated"),
]


@pytest.mark.parametrize(("fault", "bounds", "start", "what"), FAULTS, ids=[case[0].__name__ for case in FAULTS])
def test_a_fault_in_the_policy_is_found(fault, bounds, start, what, capsys):
    rules = Rules(*bounds, max_restarts=2, decided=fault)
    world = rules.empty(2) if start == "empty" else rules.running(2)
    with pytest.raises(Found) as found:
        explore(rules, [world], actions=10, settle=fault is overlooks_the_lost)
    with capsys.disabled():
        print(f"\n  explorer: {fault.__name__}: {found.value}")
    assert what in found.value.what
    assert len(found.value.story) <= 16


def test_a_write_that_ignores_the_token_is_found(capsys):
    rules = Rules(1, 2, fenced=False)
    with pytest.raises(Found) as found:
        explore(rules, [rules.empty(2)], actions=10, settle=False)
    with capsys.disabled():
        print(f"\n  explorer: unfenced writes: {found.value}")
    assert found.value.what in (
        "the members of round 1 changed",
        "round 1 was taken up again",
        "something was written after the job was closed",
    )


def test_deciding_by_a_roster_older_than_the_state_is_found():
    """Why a keeper that takes over a state reads the roster before it decides: else a member that announced itself in
    between is held to be lost, and what is known of it is forgotten."""
    rules = Rules(1, 2, wrongly_late=True, remembering=True)
    with pytest.raises(Found, match="seated before it announced itself anew"):
        explore(rules, [rules.empty(2)], actions=9)

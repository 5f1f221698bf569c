from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.rendezvous.model import Cause, RoundId, ended, formed
from elastic_core.rendezvous.roster import alive, holders, is_ready


def keys(entries):
    return [entry.key for entry in entries]


def test_member_holds_its_name_against_an_older_agent(build):
    roster = (build.seen("x/1", node="x"), build.seen("x/2", node="x"))
    state = build.state(["x/2"])
    assert keys(alive(roster, state)) == ["x/2"]
    assert holders(roster, state)["x"].key == "x/2"
    gone = ended(state, Cause.LOST, "x", "silent", ("x/2",))
    assert keys(alive(roster, gone)) == ["x/1"]


def test_lost_member_yields_its_name_to_its_replacement(build):
    """Its old entry may remain while the agent behind it sleeps or is cut off."""
    roster = (build.seen("x/1", node="x"), build.seen("x/2", node="x", after=1))
    gone = ended(build.state(["x/1", "a"]), Cause.LOST, "x", "silent", ("x/1",))
    assert keys(alive(roster, gone)) == ["x/2"]
    assert keys(alive((build.seen("x/1", node="x", after=1), roster[1]), gone)) == ["x/1"]


@pytest.mark.parametrize(("after", "ready"), [(0, False), (1, True), (2, False), (RoundId(1, "another"), False)])
def test_node_that_knows_the_last_round_is_ready(build, after, ready):
    state = ended(build.state("ab"), Cause.LEFT, "b", "goes")
    assert is_ready(build.entry("a", after=after), state) is ready
    assert not is_ready(build.entry("a", after=after, waits=False), state)


def test_newcomer_but_no_member_is_ready_while_the_round_runs(build):
    """A node may have restored an old announcement of an agent that left long ago."""
    assert is_ready(build.entry("c", after=1), build.state("ab"))
    assert not is_ready(build.entry("a", after=1), build.state("ab"))
    assert not is_ready(build.entry("c"), build.state("ab"))


def test_lost_node_is_ready_after_announcing_again(build):
    state = ended(build.state("ab"), Cause.LOST, "b", "silent", ("b",))
    later = formed(state, build.seats("a"), 3, "", {"a", "b"})
    assert not is_ready(build.entry("b", after=1), later)
    assert is_ready(build.entry("b", after=2), later)


def test_members_of_a_stopped_round_are_not_ready(build):
    state = replace(ended(build.state("ab"), Cause.LOST, "b", "silent", ("b",)), stopped=RoundId(1))
    assert not is_ready(build.entry("b", after=1), state)
    assert is_ready(build.entry("c", after=1), state)

"""The standing of each node, and which nodes are missing."""

from __future__ import annotations

import pytest

from elastic_core.operate.status import NodeStanding, Phase, snapshot_of
from elastic_core.rendezvous.model import Cause, Closed, End, RoundId, drained, ended, succeeded


@pytest.fixture
def snapshot(job):
    def snapshot(*arguments, **more):
        return snapshot_of(job.observation(*arguments, **more), job.target)

    return snapshot


def standings(views):
    return {view.about.node: view.standing.value for view in views}


def test_job_without_nodes_and_rounds_is_empty(job):
    assert job.observation().is_empty
    assert not job.observation(None, job.entries("a")).is_empty
    assert not job.observation(job.state("")).is_empty


def test_nodes_before_the_first_round_have_joined(job, snapshot):
    found = snapshot(None, job.entries("ab", max_restarts=3))
    assert (found.phase, found.state.round.number, found.nodes) == (Phase.GATHERING, 0, None)
    assert found.count(NodeStanding.JOINED) == 2
    assert standings(found.others) == {"a": "joined", "b": "joined"}
    assert (found.missing, found.max_restarts) == ((), 3)


def test_members_of_a_running_round_are_running(job, snapshot):
    state = job.state("ba", min_nodes=1, max_nodes=3, restarts=1, reason="all are there")
    found = snapshot(state, job.entries("abc", after=3))
    assert found.phase is Phase.RUNNING
    assert [(view.rank, view.about.node, view.standing) for view in found.members] == [
        (0, "b", NodeStanding.RUNNING),
        (1, "a", NodeStanding.RUNNING),
    ]
    assert standings(found.others) == {"c": "waiting"}
    assert (found.nodes.min, found.nodes.max, found.state.reason) == (1, 3, "all are there")
    assert (found.state.restarts, found.max_restarts, found.job.now - found.job.since) == (1, 3, 6.0)
    assert found.members[0].about.address == "addr-b"
    assert found.members[0].about.local_world_size == 2


def test_node_beyond_max_nodes_is_a_spare(job, snapshot):
    state = job.state("ab", min_nodes=1, max_nodes=2)
    assert standings(snapshot(state, job.entries("abc", after=3)).others) == {"c": "spare"}
    bounds_that_cannot_be = job.state("ab", min_nodes=3, max_nodes=2)
    assert snapshot(bounds_that_cannot_be, job.entries("ab")).nodes is None


def test_finished_members_are_done(job, snapshot):
    waits = snapshot(job.state("ab"), (job.entry("a", done=3), job.entry("b")))
    assert standings(waits.members) == {"a": "done", "b": "running"}
    has_left = snapshot(succeeded(job.state("ab"), ["a/1"], RoundId(3)), job.entries("b"))
    assert standings(has_left.members) == {"a": "done", "b": "running"}
    assert has_left.missing == ()


def test_late_nodes_are_missing(job, snapshot):
    found = snapshot(job.state("ab"), job.entries("abc"), silent="bc")
    assert standings(found.members) == {"a": "running", "b": "late"}
    assert standings(found.others) == {"c": "late"}
    assert found.missing == ("b", "c")


def test_member_without_an_entry_is_missing(job, snapshot):
    found = snapshot(job.state("ab"), job.entries("a"))
    assert standings(found.members) == {"a": "running", "b": "gone"}
    assert found.missing == ("b",)


def test_lost_node_is_missing_until_it_returns(job, snapshot):
    lost = End(Cause.LOST, "b, d", "lost b, d: no beat for 5 s")
    assert snapshot(job.state("ac", end=lost), job.entries("ac")).missing == ("b", "d")
    assert snapshot(job.state("abc", end=lost), job.entries("abc")).missing == ("d",)
    left = End(Cause.LEFT, "b", "b left")
    assert snapshot(job.state("ac", end=left), job.entries("ac")).missing == ()


def test_restarted_node_is_not_missing(job, snapshot):
    anew = job.entry("b", key="b/2", after=3)
    found = snapshot(ended(job.state("ab"), Cause.LOST, "b", "lost b", ("b/1",)), (*job.entries("a"), anew))
    assert standings(found.members) == {"a": "stopping", "b": "gone"}
    assert standings(found.others) == {"b": "joined"}
    assert found.missing == ()


def test_members_rejoin_between_two_rounds(job, snapshot):
    over = ended(job.state("abc"), Cause.LOST, "c", "lost c", ("c/1",))
    found = snapshot(over, (job.entry("a", after=3), *job.entries("bc")), silent="c")
    assert found.phase is Phase.GATHERING
    assert standings(found.members) == {"a": "joined", "b": "stopping", "c": "gone"}
    assert (found.count(NodeStanding.JOINED), found.missing) == (1, ("c",))
    assert found.state.end.reason == "lost c"


def test_lost_node_that_returned_is_stopping(job, snapshot):
    over = ended(job.state("ab"), Cause.LOST, "b", "lost b", ("b/1",))
    found = snapshot(over, job.entries("ab"))
    assert standings(found.members) == {"a": "stopping", "b": "stopping"}
    assert found.missing == ()


def test_drained_node_is_not_missing(job, snapshot):
    asked = drained(job.state("ab"), "b/1")
    assert standings(snapshot(asked, job.entries("ab")).members) == {"a": "running", "b": "draining"}
    has_left = snapshot(asked, job.entries("a"))
    assert standings(has_left.members) == {"a": "running", "b": "gone"}
    assert has_left.missing == ()
    waiting = drained(job.state("a"), "b/1")
    assert standings(snapshot(waiting, job.entries("ab")).others) == {"b": "draining"}


def test_former_member_is_stopping_until_it_rejoins(job, snapshot):
    state = job.state("a")
    assert standings(snapshot(state, (job.entry("a"), job.entry("b", after=2))).others) == {"b": "stopping"}
    assert standings(snapshot(state, (job.entry("a"), job.entry("b", after=3))).others) == {"b": "waiting"}


def test_nodes_of_a_closed_job_are_leaving(job, snapshot):
    over = job.state("ab", open=False, closed=Closed("a", "every worker succeeded", True))
    found = snapshot(over, job.entries("bc"), silent="c")
    assert found.phase is Phase.CLOSED
    assert standings(found.members) == {"a": "gone", "b": "leaving"}
    assert standings(found.others) == {"c": "leaving"}
    assert (found.missing, found.state.closed.by) == ((), "a")

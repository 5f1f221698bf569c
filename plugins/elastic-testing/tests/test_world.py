"""Scenarios of whole jobs in the simulated world."""

from __future__ import annotations

import random

import pytest
from elastic_testing import World

from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout


def world(min_nodes, max_nodes, count, **more):
    made = World(RendezvousSettings("job", min_nodes, max_nodes, RendezvousTimeout()), **more)
    for number in range(count):
        made.join(f"n{number}")
    return made


@pytest.mark.parametrize("pause", [4, 9, 30])
@pytest.mark.parametrize("leases", [False, True])
def test_restarted_agent_joins_despite_an_outage(leases, pause):
    """The dead agent's entry remains, and the outage hides that it is dead."""
    job = world(2, 2, 0, grace=30.0, leases=leases)
    job.join("x")
    job.join("o")
    job.run(20)
    dead = next(name for name, node in job.nodes.items() if not node.machine.election.leading)
    job.crash(dead)
    job.run(0.5)
    job.join("again", called=dead)
    job.run(3)
    job.sleep(True)
    job.run(pause)
    job.sleep(False)
    job.run(60)
    assert not job.state.refused
    assert (job.state.round.number, sorted(job.members())) == (2, ["o", "x"])


def test_outage_does_not_count_against_rejoin_time():
    """One member takes 40 s to stop its workers. All nodes are cut off during that time; the other members rejoin
    first."""
    job = world(2, 3, 3)
    job.run(6)
    slow = job.members()[2]
    job.nodes[slow].stops_in = 40.0
    job.fail(job.members()[1])
    job.run(5)
    for name in job.nodes:
        job.partition(name)
    job.run(75)
    for name in job.nodes:
        job.partition(name, True)
    job.run(60)
    assert (job.state.round.number, sorted(job.members())) == (2, sorted(job.nodes))


def test_crash_after_success_still_counts_as_success():
    """The spare does not replace it, because the other member still works."""
    job = world(2, 2, 3)
    job.run(6)
    assert not job.ending
    first, second = job.members()
    job.succeed(first)
    job.run(1)
    assert job.ending
    job.crash(first)
    job.run(30)
    assert job.ending
    assert (job.state.round.number, job.members()) == (1, [first, second])


@pytest.mark.parametrize("order", [["n0", "n1", "n2"], ["n2", "n1", "n0"], ["n1", "n0", "n2"]])
@pytest.mark.parametrize("apart", [0.0, 0.1, 0.6])
def test_round_survives_the_end_of_all_leases(order, apart):
    job = world(1, 3, 3, leases=True)
    job.run(6)
    for name in order:
        job.end_lease(name)
        job.run(apart)
    job.run(30)
    assert (job.state.round.number, job.members()) == (1, ["n0", "n1", "n2"])


def test_node_gets_a_new_lease_after_losing_one():
    choice = random.Random(2)
    job = world(3, 5, 3, seed=22, leases=True)
    for _ in range(24):
        for name in choice.sample(list(job.nodes), 3):
            job.end_lease(name)
            job.run(choice.choice([0.0, 0.01, 0.5]))
    job.run(30)
    assert job.in_step()


def test_round_forms_after_the_oldest_node_died():
    job = world(3, 3, 2)
    job.run(1)
    job.crash("n0")
    job.join("n2")
    job.join("n3")
    job.run(30)
    assert sorted(job.members()) == ["n1", "n2", "n3"]


@pytest.mark.parametrize(("event", "again"), [("freeze", False), ("partition", True)])
def test_leader_that_comes_back_writes_no_stale_state(event, again):
    job = world(1, 3, 3)
    job.run(6)
    getattr(job, event)("n0")
    job.run(20)
    assert job.members() == ["n1", "n2"]
    getattr(job, event)("n0", again)
    job.run(5)
    assert job.in_step()
    assert sorted(job.members()) == ["n0", "n1", "n2"]


def test_store_outage_for_all_nodes_ends_no_round():
    job = world(1, 3, 3, grace=60.0)
    job.run(6)
    for name in job.nodes:
        job.partition(name)
    job.run(60)
    for name in job.nodes:
        job.partition(name, reachable=True)
    job.run(30)
    assert (job.members(), job.state.round.number) == (["n0", "n1", "n2"], 1)


def test_node_name_cannot_be_reused():
    job = world(1, 2, 1)
    with pytest.raises(ValueError, match="the name 'n0' was used before"):
        job.join("n0")


def test_three_hundred_nodes_form_a_round_with_few_calls():
    job = world(300, 300, 300)
    job.run(0.5)
    assert job.in_step()
    assert (job.state.round.number, job.store.writes) == (1, 1)
    calls = sorted(sum(node.calls.values()) for node in job.nodes.values())
    assert calls[-2] <= 6  # all but the leader's
    assert calls[-1] <= 20


def test_steady_state_needs_only_heartbeats():
    job = world(50, 50, 50)
    job.run(3)
    before = {name: node.calls.copy() for name, node in job.nodes.items()}
    job.run(20)
    spent = {name: node.calls - before[name] for name, node in job.nodes.items()}
    leaders = [name for name, calls in spent.items() if set(calls) != {"Heartbeat"}]
    assert len(leaders) == 1
    assert max(calls["Heartbeat"] for calls in spent.values()) <= 21
    assert spent[leaders[0]]["ReadRoster"] <= 21


def test_only_the_next_leader_reads_the_roster_after_a_death():
    job = world(40, 50, 50)
    job.run(10)
    before = {name: node.calls["ReadRoster"] for name, node in job.nodes.items()}
    job.crash("n0")
    job.run(20)
    looked = [name for name, node in job.nodes.items() if node.calls["ReadRoster"] > before[name]]
    assert (len(job.members()), looked) == (49, ["n1"])


def forget_during(job, what):
    """`what` happens while n0 is cut off; then the store loses its data, and becomes reachable for n0 first."""
    job.run(1)
    job.partition("n0")
    what("n1")
    job.run(0.1)
    job.partition("n1")
    job.forget()
    job.partition("n0", reachable=True)
    job.run(1)
    assert (job.state.round.number, job.state.open, job.state.restarts, job.state.closed) == (1, True, 0, None)
    job.partition("n1", reachable=True)


def test_restart_that_the_store_forgot_is_still_counted():
    job = world(2, 2, 2)
    forget_during(job, job.fail)
    job.run(2)
    assert job.in_step()
    assert (job.state.round.number, job.state.restarts) == (2, 1)


def test_job_stays_closed_after_the_store_forgot_its_end():
    job = world(2, 2, 2)
    forget_during(job, job.close)
    job.run(10)
    assert job.state.closed.by == "n1"
    assert not any(node.active for node in job.nodes.values())


def test_job_closes_again_after_nodes_continued_without_its_end():
    job = world(1, 2, 2)
    job.run(6)
    job.partition("n0")
    job.close("n1")
    job.run(0.1)
    job.partition("n1")
    job.forget()
    job.partition("n0", reachable=True)
    job.run(30)
    assert (job.members(), job.state.round.number) == (["n0"], 2)
    job.partition("n1", reachable=True)
    job.run(10)
    assert job.state.closed.by == "n1"
    assert not any(node.active for node in job.nodes.values())


@pytest.mark.parametrize("leaving", [1, 6])
def test_next_node_leads_within_one_failure_timeout(leaving):
    job = World(RendezvousSettings("job", 2, 20, RendezvousTimeout(last_call=60.0)))
    for number in range(leaving + 2):
        job.join(f"n{number}")
        job.run(0.1)
    job.run(3)
    for number in range(leaving):
        job.leave(f"n{number}")
    job.run(job.settings.failure_timeout + 1)
    assert [name for name, node in job.nodes.items() if node.machine.election.leading] == [f"n{leaving}"]


def test_each_node_reads_the_roster_once_per_silence():
    job = world(50, 50, 0)
    for number in range(20):
        job.join(f"n{number}")
        job.run(0.05)
    job.run(3)
    before = {name: node.calls["ReadRoster"] for name, node in job.nodes.items()}
    job.crash("n0")
    job.run(job.settings.failure_timeout + 3)
    assert job.nodes["n1"].machine.election.leading
    assert all(job.nodes[f"n{i}"].calls["ReadRoster"] <= before[f"n{i}"] + 1 for i in range(2, 20))

"""An agent is killed while its machine lives: peers know immediately, not after missed heartbeats, which would take
minutes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from job_of_nodes import Job, eventually, lives

pytestmark = pytest.mark.torch

MINUTES = {"keep_alive_interval": "1", "keep_alive_max_attempt": "600"}
ENDED = "its agent has ended"


@pytest.fixture
def any_store(any_job):
    """A job whose store no agent hosts."""
    any_job.conf |= MINUTES
    if any_job.backend == "c10d":
        any_job.serve()
    return any_job


def sockets(pid):
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {link for link in links if link.startswith("socket:")}


def test_only_agent_and_guardian_hold_the_lifeline(any_store):
    agents = [any_store.agent(name, "--nnodes=2") for name in "ab"]
    both = any_store.round(2)
    worker = psutil.Process(both.pid("a"))
    agent = worker.parent()
    (guardian,) = (child for child in agent.children() if "sessions" in child.cmdline())
    assert len(sockets(guardian.pid) & sockets(agent.pid)) == 1
    assert not sockets(worker.pid) & sockets(agent.pid)
    any_store.ends_well(*agents)


@pytest.mark.parametrize(("any_job", "rank"), [("c10d", 0), ("etcd", 1), ("c10d", 2)], indirect=["any_job"])
def test_killed_agent_is_replaced_immediately(any_store, rank):
    """Whatever its rank is, so also the leader. Its worker and the worker's children end before the other nodes
    continue."""
    agents = {name: any_store.agent(name, "--nnodes=1:3") for name in "abc"}
    three = any_store.round(3)
    lost = agents.pop(three.nodes[rank])
    worker = three.pid(lost.name)
    lost.signal(signal.SIGKILL)
    two = any_store.round(2, after=three)
    assert not lives(worker)
    assert two.nodes == [name for name in three.nodes if name != lost.name]
    assert two.restarts == {"0"}
    for agent in agents.values():
        agent.says(f'restart decided: cause="node lost" reason="lost {lost.name}: {ENDED}"')
    back = any_store.agent(lost.name, "--nnodes=1:3")
    any_store.round(3, after=two)
    any_store.ends_well(*agents.values(), back)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_killed_agent_is_the_cause_despite_worker_failures(any_store, rank):
    """They are connected to the killed agent's workers. No restart is allowed, and none is used."""
    agents = {name: any_store.agent(name, "--nnodes=1:2", script=any_store.trainer) for name in "ab"}
    both = any_store.round(2)
    lost = agents.pop(both.nodes[rank])
    (kept,) = agents.values()
    before = kept.err.count("restart decided")  # one, if it started alone
    lost.signal(signal.SIGKILL)
    alone = any_store.round(1, after=both)
    assert (alone.nodes, alone.restarts, alone.all("saw")) == ([kept.name], {"0"}, [1])
    kept.says(f'restart decided: cause="node lost" reason="lost {lost.name}: {ENDED}')
    any_store.ends_well(kept)
    assert kept.err.count("restart decided") == before + 1
    assert "restarts=0" in kept.err


@pytest.mark.parametrize("any_job", ["etcd"], indirect=True)
def test_two_successive_kills_are_noticed(any_store):
    """The node that watched the first one then watches the next one."""
    agents = {name: any_store.agent(name, "--nnodes=1:3") for name in "abc"}
    before = any_store.round(3)
    for size in (2, 1):
        lost = agents.pop(before.nodes[-1])
        lost.signal(signal.SIGKILL)
        before = any_store.round(size, after=before)
    (last,) = agents.values()
    assert last.err.count(ENDED) >= 2
    any_store.ends_well(last)


@pytest.fixture
def apart(elastic, machines):
    """A job of three agents on three machines, after its first full round: the job, the machines by name, the agents by
    name, and the round. The first one hosts the store."""
    job = Job(elastic.start_to_files, elastic.cwd, **MINUTES)
    made = dict(zip(("n0", "n1", "n2"), machines(3), strict=True))
    job.endpoint = f"{made['n0'].address}:29400"
    agents = {}
    for name, machine in made.items():
        elastic.through = machine.through
        agents[name] = job.agent(name, "--nnodes=1:3", **machine.environment)
        agents["n0"].says("store hosted")
    return job, made, agents, job.round(3)


def another(name, three, step):
    return three.nodes[(three.nodes.index(name) + step) % 3]


@pytest.mark.nightly
def test_cut_link_does_not_mean_agent_death(apart):
    """Its machine is unreachable and silent. The agent is killed after the link is restored."""
    job, made, agents, three = apart
    cut = another("n0", three, 1)
    made[cut].cut()
    agents[cut].says("store out of reach")
    made[cut].mend()
    agents[cut].says("store is back")
    assert not any("lost" in agent.err for agent in agents.values())
    assert job.rounds()[-1] == three
    agents[cut].signal(signal.SIGKILL)
    job.round(2, after=three)
    agents["n0"].says(ENDED)
    job.end()


@pytest.mark.nightly
def test_failed_connection_over_cut_link_means_no_death(apart):
    job, made, agents, three = apart
    cut = another("n0", three, 1)
    watcher = made[another(cut, three, -1)]
    made[cut].cut()
    watcher.run("ss", "-K", "dst", made[cut].address)
    asks = ("ss", "-Htn", "state", "syn-sent", "dst", made[cut].address)
    eventually(lambda: watcher.run(*asks), "the watcher tries to connect")
    eventually(lambda: not watcher.run(*asks), "it gives up")
    made[cut].mend()
    agents[cut].says("store is back")
    assert not any("lost" in agent.err for agent in agents.values())
    assert job.rounds()[-1] == three
    job.ends_well(*agents.values())

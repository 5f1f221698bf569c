"""Several agents, each a node, with real stores, workers and signals: they agree, lose and gain nodes, and continue."""

from __future__ import annotations

import signal

import pytest
from job_of_nodes import SOON, eventually, free_port, kill, kill_node, lives

from elastic_core.support.sockets import reached_at

pytestmark = pytest.mark.torch

TERM = 128 + signal.SIGTERM


def guest_and_host(agents):
    """The agents, with the store host last."""
    return sorted(agents, key=lambda agent: "store hosted" in agent.err)


def test_ddp_job_restarts_after_a_killed_worker(any_job):
    """A plain DDP loop: ranks and addresses are right, and after a SIGKILL the job has the same size again, with one
    restart on both nodes and a new store."""
    agents = any_job.agents("a b", "--nnodes=1:2", "--max-restarts=3", script=any_job.trainer)
    first = any_job.round(2)
    assert first.all("saw") == [2, 2]  # they met in a collective
    assert first.all("RANK") == first.all("GROUP_RANK") == ["0", "1"]
    assert first.all("GROUP_WORLD_SIZE") == ["2", "2"]
    assert set(first.all("MASTER_ADDR")) == {"127.0.0.1" if any_job.backend == "c10d" else reached_at()}
    assert set(first.all("TORCHELASTIC_RUN_ID")) == {"job"}
    assert set(first.all("TORCHELASTIC_USE_AGENT_STORE")) == {"True"}
    assert first.restarts == {"0"}
    kill(first.pid("b"))
    second = any_job.round(2, after=first)
    assert second.all("saw") == [2, 2]
    assert second.restarts == {"1"}
    assert second.nodes == first.nodes
    assert second.port != first.port
    any_job.ends_well(*agents)
    for agent in agents:
        assert "killed by SIGKILL" in agent.err


def test_nodes_leave_and_join_without_restarts(any_job):
    """SIGTERM makes one agent leave with its documented exit code, and the others form a round without waiting for a
    timeout. A newcomer joins, then one agent alone is killed: its workers die with it. No restart is allowed, and none
    is used."""
    any_job.conf |= {"keep_alive_interval": "1", "keep_alive_max_attempt": "10"}
    agents = any_job.agents("a b c", "--nnodes=1:3")
    three = any_job.round(3)
    first_guest, second_guest, host = guest_and_host(agents)
    first_guest.signal(signal.SIGTERM)
    two = any_job.round(2, after=three)
    assert first_guest.code() == TERM
    assert sorted(two.nodes) == sorted([second_guest.name, host.name])
    newcomer = any_job.agent("d", "--nnodes=1:3")
    again = any_job.round(3, after=two)
    assert again.nodes[:2] == two.nodes  # survivors keep their order
    second_guest.process.kill()
    eventually(lambda: not lives(again.pid(second_guest.name)), "its worker dies with the agent")
    last = any_job.round(2, after=again)
    assert [found.restarts for found in (three, two, again, last)] == [{"0"}] * 4
    any_job.ends_well(host, newcomer)
    assert not any(f"lost {first_guest.name}" in agent.err for agent in (second_guest, host))


def test_spare_replaces_a_lost_member(any_job):
    """Two members and two spares: one spare replaces a lost member, the other one is never needed."""
    any_job.conf |= {"last_call_timeout": "10", **SOON}
    if any_job.backend == "c10d":
        any_job.serve()
    members = any_job.agents("a b", "--nnodes=1:2")
    two = any_job.round(2)
    spares = any_job.agents("c d", "--nnodes=1:2")
    for spare in spares:
        spare.says("this node is a spare")
    lost = next(agent for agent in members if agent.name == two.nodes[0])  # rank 0, which hosts the workers' store
    kept = next(agent for agent in members if agent is not lost)
    kill_node(lost, two.pid(lost.name))
    replaced = any_job.round(2, after=two)
    assert kept.name in replaced.nodes
    assert {"c", "d"} & set(replaced.nodes)
    assert replaced.restarts == {"0"}
    assert all(spare.runs for spare in spares)
    any_job.ends_well(kept, *spares)
    assert any("was not needed" in spare.err for spare in spares)


@pytest.mark.parametrize("any_job", ["c10d"], indirect=True)
def test_exhausted_restarts_end_all_agents(any_job):
    """Every agent reports the first failure, with its node, rank and last output; exit codes show whose it was."""
    here, there = any_job.agents("a b", "--nnodes=2", "--max-restarts=1")
    first = any_job.round(2)
    any_job.end("a", 3, "the data disk failed")
    second = any_job.round(2, after=first)
    assert second.restarts == {"1"}
    assert here.code() == 1
    assert there.code() == 5
    for agent in (here, there):
        rank = second.nodes.index("a")
        who = f"rank {rank} (local rank 0, pid {second.pid('a')}) on a"
        assert f"Root cause (round 2, after 1 restart): {who}: exit code 3" in agent.err
        assert "the data disk failed" in agent.report
        assert "--max-restarts" in agent.report


@pytest.mark.parametrize("any_job", ["c10d"], indirect=True)
def test_finished_node_waits_until_a_signal_or_the_end(any_job):
    """A finished node waits for the others, so that it can take part again if one of them fails. A signal ends the
    wait, and the rest of the job continues."""
    agents = {agent.name: agent for agent in any_job.agents("a b c", "--nnodes=3", "--max-restarts=1")}
    first = any_job.round(3)
    guest, other, host = guest_and_host(agents.values())
    any_job.end(host.name)
    any_job.end(guest.name)
    for agent in (host, guest):
        agent.says('waiting_for="the workers of other nodes to succeed"')  # for more than 3 s
    guest.signal(signal.SIGTERM)
    assert guest.code(60) == TERM
    assert other.runs
    assert host.runs
    assert any_job.rounds() == [first]
    any_job.end(other.name)
    assert [other.code(), host.code()] == [0, 0]


@pytest.mark.parametrize("any_job", ["etcd"], indirect=True)
def test_finished_node_rejoins_when_another_fails(any_job):
    agents = any_job.agents("a b", "--nnodes=2", "--max-restarts=1", "--log-level=debug")
    first = any_job.round(2)
    any_job.end("a")
    agents[0].says("worker exited")
    kill(first.pid("b"))
    second = any_job.round(2, after=first)
    assert second.restarts == {"1"}
    any_job.end("b")
    assert [agent.code() for agent in agents] == [0, 0]


@pytest.mark.parametrize("any_job", ["c10d"], indirect=True)
def test_rank_hints_roles_and_node_sizes_apply(any_job):
    """Node ranks are as hinted, whichever node comes first; ranks within a role count only the role's nodes."""
    agents = [
        any_job.agent("c", "--nnodes=3", "--node-rank=2", "--role=trainer"),
        any_job.agent("b", "--nnodes=3", "--node-rank=1", "--role=reader"),
        any_job.agent("a", "--nnodes=3", "--node-rank=0", "--role=trainer", "--nproc-per-node=2"),
    ]
    found = any_job.round(4)
    assert found.all("node") == ["a", "a", "b", "c"]
    assert found.all("GROUP_RANK") == ["0", "0", "1", "2"]
    assert found.all("LOCAL_RANK") == ["0", "1", "0", "0"]
    assert found.all("LOCAL_WORLD_SIZE") == ["2", "2", "1", "1"]
    assert found.all("ROLE_NAME") == ["trainer", "trainer", "reader", "trainer"]
    assert found.all("ROLE_RANK") == ["0", "1", "0", "2"]
    assert found.all("ROLE_WORLD_SIZE") == ["3", "3", "1", "3"]
    any_job.ends_well(*agents)


def test_static_backend_restarts_after_a_failure(job):
    """A fixed number of nodes with given ranks meets at the master's address and restarts after a failure."""
    meeting = str(free_port())
    fixed = ("--nnodes=2", "--max-restarts=1", f"--master-port={meeting}")
    job.conf = {"keep_alive_interval": "0.3"}
    agents = [job.static_agent(name, rank, *fixed) for rank, name in ((1, "b"), (0, "a"))]
    first = job.round(2)
    assert first.nodes == ["a", "b"]
    kill(first.pid("b"))
    second = job.round(2, after=first)
    assert second.nodes == ["a", "b"]
    assert second.restarts == {"1"}
    ports = [set(found.all("MASTER_PORT")) for found in (first, second)]
    assert [len(each) for each in ports] == [1, 1]
    assert len({meeting}.union(*ports)) == 3  # each round's store has a separate port
    job.ends_well(*agents)


LAUNCH = """
import json, os, sys
from elastic_core.launch import LaunchConfig, elastic_launch


def work(factor):
    return factor * int(os.environ["RANK"]), os.environ["WORLD_SIZE"], os.environ["GROUP_WORLD_SIZE"]


if __name__ == "__main__":
    config = LaunchConfig(2, 2, 2, run_id="py", rdzv_backend="c10d", rdzv_endpoint=sys.argv[1], rdzv_timeout=60)
    print(json.dumps(elastic_launch(config, work)(10)))
"""


def test_elastic_launch_returns_results_by_rank(job, elastic):
    script = elastic.script("launch.py", LAUNCH)
    agents = [job.command(name, script, job.endpoint) for name in ("a", "b")]
    assert [agent.code() for agent in agents] == [0, 0], agents[0].err + agents[1].err
    eventually(lambda: not elastic.living(), "multiprocessing's own tracker ends after its program")
    found = sorted(agent.out for agent in agents)
    assert found == [
        '{"0": [0, "4", "2"], "1": [10, "4", "2"]}\n',
        '{"2": [20, "4", "2"], "3": [30, "4", "2"]}\n',
    ]

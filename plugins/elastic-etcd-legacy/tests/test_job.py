"""`elastic run --rdzv-backend etcd-legacy` with agents as processes, over a real etcd."""

from __future__ import annotations

import signal

import pytest
from job_of_nodes import Job, kill, kill_node

from elastic_core.support.sockets import reached_at

pytestmark = pytest.mark.torch


@pytest.fixture
def running(elastic, etcd, run_id):
    made = Job(elastic.start_to_files, elastic.cwd, backend="etcd-legacy", endpoint=etcd.endpoint)
    made.conf = {"last_call_timeout": "1", "etcd_prefix": f"/{run_id}", "timeout": "110"}
    return made


@pytest.mark.nightly
def test_ddp_over_two_nodes_survives_a_killed_worker(running):
    agents = running.agents("a b", "--nnodes=2", "--max-restarts=3", script=running.trainer)
    first = running.round(2)
    assert first.all("saw") == [2, 2]
    assert first.all("RANK") == first.all("GROUP_RANK") == ["0", "1"]
    assert set(first.all("MASTER_ADDR")) == {reached_at()}
    assert first.restarts == {"0"}
    kill(first.pid("b"))
    second = running.round(2, after=first)
    assert second.all("saw") == [2, 2]
    assert second.restarts == {"1"}
    assert second.port != first.port
    running.ends_well(*agents)
    assert all(agent.err.count("backend deprecated") == 1 for agent in agents)


def test_job_shrinks_and_grows_with_its_nodes(running):
    kept, leaving = running.agents("a b", "--nnodes=1:2")
    both = running.round(2)
    leaving.signal(signal.SIGTERM)
    alone = running.round(1, after=both)
    assert alone.nodes == ["a"]
    newcomer = running.agent("c", "--nnodes=1:2")
    again = running.round(2, after=alone)
    assert sorted(again.nodes) == ["a", "c"]
    running.ends_well(kept, newcomer)
    assert leaving.code() == 128 + signal.SIGTERM


def test_job_continues_without_a_killed_node(running):
    kept, lost = running.agents("a b", "--nnodes=1:2")
    both = running.round(2)
    kill_node(lost, both.pid("b"))
    alone = running.round(1, after=both)
    assert alone.nodes == ["a"]
    running.ends_well(kept)

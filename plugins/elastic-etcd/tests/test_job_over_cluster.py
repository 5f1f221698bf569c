"""Two agents train over a three-member etcd cluster with faults: workers keep running through the fault, and the job
recovers from a worker that fails while a member or the quorum is down."""

from __future__ import annotations

import time

import pytest
from job_of_nodes import Job, eventually, kill, lives

pytestmark = [pytest.mark.nightly, pytest.mark.torch]


@pytest.fixture
def job(elastic, cluster):
    return Job(elastic.start_to_files, elastic.cwd, "etcd", cluster.endpoints)


@pytest.fixture
def running(job):
    """The agents and their first round, with the backend's defaults except for the last call."""
    job.conf = {"last_call_timeout": "1"}
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3", script=job.trainer)
    return agents, job.round(2)


def heal(job, first):
    """Kill a worker, and wait for a round of the same size."""
    kill(first.pid("a"))
    second = job.round(2, after=first)
    assert second.restarts == {"1"}
    assert second.nodes == first.nodes
    return second


def finish(job, agents, *rounds):
    """End the job; it must succeed after exactly these rounds."""
    job.ends_well(*agents)
    assert [found.port for found in job.rounds()] == [found.port for found in rounds]


def unharmed(job, last, seconds=0.0):
    """Check that no worker was restarted since this round, nor is within `seconds`."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until or job.rounds()[-1].port != last.port, "the time to pass", seconds + 5)
    assert job.rounds()[-1].port == last.port
    assert all(lives(int(pid)) for pid in last.all("pid"))


def test_job_survives_paused_etcd_leader(job, cluster, running):
    agents, first = running
    leader = cluster.leader()
    leader.stop()
    unharmed(job, first, 30.0)
    second = heal(job, first)
    leader.cont()
    leader.wait_healthy()
    unharmed(job, second, 6.0)  # before 3.5.11 it ends the lease of every node as it wakes
    finish(job, agents, first, second)


def test_job_survives_rolling_restart_of_etcd(job, cluster, running):
    """A worker fails while the last member is down."""
    agents, first = running
    *others, last = cluster.members
    for member in others:
        member.restart()
        cluster.leader()
    unharmed(job, first)
    last.terminate()
    second = heal(job, first)
    last.restart()
    cluster.leader()
    unharmed(job, second)
    finish(job, agents, first, second)


def test_job_survives_temporary_quorum_loss(job, cluster, running):
    """A worker fails during the outage; its agent reports that afterwards."""
    agents, first = running
    away = cluster.followers()
    for member in away:
        member.stop()
    unharmed(job, first, 10.0)
    kill(first.pid("a"))
    for member in away:
        member.cont()
    second = job.round(2, after=first)
    assert second.restarts == {"1"}
    finish(job, agents, first, second)

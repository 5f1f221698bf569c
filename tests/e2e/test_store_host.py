"""The agent that hosts the store goes, and another one hosts it: the one that it hands it over to or, if it was killed,
another one of its machine."""

from __future__ import annotations

import signal

import pytest
from job_of_nodes import SOON, eventually, kill, lives

pytestmark = pytest.mark.torch


def hosts(agent):
    return "store hosted" in agent.err


def formed_and_restarted(job):
    """Guest, host, and the second round of two nodes: one restart has been used."""
    job.conf |= SOON
    agents = job.agents("a b", "--nnodes=1:2", "--max-restarts=3")
    first = job.round(2)
    host = next(agent for agent in agents if hosts(agent))
    guest = next(agent for agent in agents if agent is not host)
    kill(first.pid(guest.name))
    second = job.round(2, after=first)
    assert second.restarts == {"1"}
    return guest, host, second


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_host_of_the_store_goes_and_the_other_goes_on(job, how):
    """What the store knew goes on too: it was handed over, or the survivor gives the state to a new one."""
    guest, host, both = formed_and_restarted(job)
    host.signal(how)
    alone = job.round(1, after=both)
    assert alone.nodes == [guest.name]
    assert alone.restarts == {"1"}
    assert host.code() == (128 + how if how == signal.SIGTERM else -how)
    eventually(lambda: not lives(both.pid(host.name)), "its worker ends with the agent")
    guest.says("store taken over" if how == signal.SIGTERM else "store hosted")
    kill(alone.pid(guest.name))
    assert job.round(1, after=alone).restarts == {"2"}
    job.end()
    assert guest.code() == 0


def test_of_two_who_are_left_one_hosts_and_both_go_on(job):
    job.conf |= SOON
    agents = job.agents("a b c", "--nnodes=1:3", "--max-restarts=3")
    three = job.round(3)
    host = next(agent for agent in agents if hosts(agent))
    left = [agent for agent in agents if agent is not host]
    host.signal(signal.SIGKILL)
    two = job.round(2, after=three)
    assert sorted(two.nodes) == sorted(agent.name for agent in left)
    assert two.restarts == {"0"}
    assert sorted(hosts(agent) for agent in left) == [False, True]
    job.end()
    assert [agent.code() for agent in left] == [0, 0]

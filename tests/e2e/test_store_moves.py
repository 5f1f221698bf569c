"""The machine that hosts the c10d store leaves, planned or not, and the job continues. Machines are network
namespaces."""

from __future__ import annotations

import signal
import time

import pytest
from job_of_nodes import Job, eventually

pytestmark = [pytest.mark.nightly, pytest.mark.torch]

FLAGS = ("--nnodes=2:3", "--max-restarts=3")


class Cluster:
    """A job with one agent per machine; the first one hosts the store."""

    def __init__(self, elastic, machines, count, listed=1):
        self.machines = machines(count)
        self.elastic = elastic
        self.job = Job(elastic.start_to_files, elastic.cwd)
        self.job.endpoint = ",".join(f"{machine.address}:29400" for machine in list(self.machines)[:listed])
        self.job.conf |= {"keep_alive_interval": "1", "keep_alive_max_attempt": "5"}
        self.agents = {}

    def start(self, number, *flags, name="", **environment):
        machine = self.machines[number]
        name = name or f"n{number}"
        self.elastic.through = machine.through
        self.agents[name] = self.job.agent(name, *(flags or FLAGS), **machine.environment, **environment)
        self.elastic.through = []
        return self.agents[name]

    def formed(self, *flags):
        """Start an agent on every machine. Returns their first round."""
        first = self.start(0, *flags)
        first.says("store hosted")
        for number in range(1, len(self.machines)):
            self.start(number, *flags)
        return self.job.round(len(self.machines))


@pytest.fixture
def cluster(elastic, machines):
    return lambda count, listed=1: Cluster(elastic, machines, count, listed)


def test_terminated_host_hands_its_store_over(cluster):
    """The other agents are on other machines, and form the next round alone."""
    made = cluster(3, listed=3)
    first = made.formed()
    n0, n1, n2 = made.agents.values()
    begun = time.monotonic()
    n0.signal(signal.SIGTERM)
    second = made.job.round(2, after=first)
    print(f"next round after {time.monotonic() - begun:.2f} s")
    assert n0.code() == 128 + signal.SIGTERM
    assert sorted(second.nodes) == ["n1", "n2"]
    assert "store handed over" in n0.err
    assert sum("store taken over" in agent.err for agent in (n1, n2)) == 1
    assert not any("store out of reach" in agent.err for agent in (n1, n2))
    third = made.start(0, name="back")
    made.job.round(3, after=second)
    made.job.ends_well(n1, n2, third)


def test_each_terminated_host_hands_its_store_over(cluster):
    """The endpoint lists one host; the moved nodes are found there again when its machine returns."""
    made = cluster(3)
    made.formed("--nnodes=1:3")
    n0, n1, n2 = made.agents.values()
    n0.signal(signal.SIGTERM)
    assert n0.code() == 128 + signal.SIGTERM
    eventually(lambda: any("store taken over" in agent.err for agent in (n1, n2)), "an heir")
    heir, last = (n1, n2) if "store taken over" in n1.err else (n2, n1)
    heir.signal(signal.SIGTERM)
    assert heir.code() == 128 + signal.SIGTERM
    last.says("store taken over")
    alone = made.job.round(1)
    assert alone.nodes == [last.name]
    back = made.start(0, "--nnodes=1:3", name="back")
    two = made.job.round(2, after=alone)
    assert sorted(two.nodes) == sorted([last.name, "back"])
    made.job.ends_well(last, back)


def test_job_survives_losing_the_new_host(cluster):
    """The pointer at the endpoint is outdated, so the last nodes continue at the endpoint's new store."""
    made = cluster(3)
    first = made.formed("--nnodes=1:3")
    n0, n1, n2 = made.agents.values()
    n0.signal(signal.SIGTERM)
    assert n0.code() == 128 + signal.SIGTERM
    second = made.job.round(2, after=first)
    back = made.start(0, "--nnodes=1:3", name="back")
    third = made.job.round(3, after=second)
    heir, last = (1, n2) if "store taken over" in n1.err else (2, n1)
    made.machines[heir].off()
    fourth = made.job.round(2, after=third)
    assert sorted(fourth.nodes) == sorted([last.name, "back"])
    made.job.ends_well(last, back)


def test_lost_host_machine_rejoins(cluster):
    """No node serves the store in the meantime. The other nodes fence their workers, and resume when the host
    returns."""
    made = cluster(3)
    made.job.conf |= {"outage_grace": "0"}
    first = made.formed()
    _, n1, n2 = made.agents.values()
    made.machines[0].off()
    for agent in (n1, n2):
        agent.says("stopping workers")
    made.machines[0].mend()
    back = made.start(0, name="back")
    second = made.job.round(3, after=first)
    assert sorted(second.nodes) == ["back", "n1", "n2"]
    assert second.restarts == {"0"}
    assert "round=2" in n1.err
    made.job.ends_well(n1, n2, back)

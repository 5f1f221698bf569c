"""Stories of jobs that once failed. Each must end well."""

from __future__ import annotations

import pytest
from elastic_testing import World

from elastic_core.interfaces.node import generated_name
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout


@pytest.fixture
def job():
    return World(RendezvousSettings("job", 1, 3, RendezvousTimeout()))


def test_nodes_that_cannot_connect_are_not_both_seated(job):
    for name in ("n0", "n1", "n2"):
        job.join(name)
    job.run(8)
    job.separate("n1", "n2")
    job.run(120)
    assert len(job.members()) == 2


def test_agents_with_one_host_name_share_a_round(job):
    """Each agent has process id 1 in its container."""
    for name in ("x", "y"):
        job.join(name, called=generated_name("box"))
    job.run(60)
    assert len(job.members()) == 2

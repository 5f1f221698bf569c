"""The agent that hosts the store ends and another one hosts it: the one that takes it over or, if the host was killed,
another one on its machine."""

from __future__ import annotations

import signal
import time

import pytest
from job_of_nodes import SOON, eventually, kill, kill_node, lives

pytestmark = pytest.mark.torch


def hosts(agent):
    return "store hosted" in agent.err


def formed_and_restarted(job):
    """Returns the guest, the host, and the second round of two nodes, after one restart."""
    job.conf |= SOON
    agents = job.agents("a b", "--nnodes=1:2", "--max-restarts=3")
    first = job.round(2)
    host = next(agent for agent in agents if hosts(agent))
    guest = next(agent for agent in agents if agent is not host)
    kill(first.pid(guest.name))
    second = job.round(2, after=first)
    assert second.restarts == {"1"}
    return guest, host, second


# `elastic` with an agent that prints when it hands over the store, and waits up to a minute for the heir.
PATIENT = """
import sys

from elastic_core.cli import entry_point
from elastic_core.rendezvous import handler
from elastic_core.rendezvous.driver import Patience


class PatientHandler(handler.DynamicRendezvousHandler):
    def __init__(self, *args, **options):
        super().__init__(*args, patience=Patience(handover=60.0), **options)

    def hand_over(self):
        print("handing over", file=sys.stderr, flush=True)
        return super().hand_over()


handler.DynamicRendezvousHandler = PatientHandler
entry_point(sys.argv[1:])
"""


@pytest.mark.parametrize("begins", ["when the workers have succeeded", "after a first signal"])
def test_second_signal_ends_a_handover(job, elastic, begins):
    """The heir is suspended, so it does not take over the store. After a first signal, the second one once killed the
    agent, which then left no result file and ended with another exit code."""
    own = ("--node-id=a", "--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.2")
    flags = (*own, "--exit-barrier-timeout=0", "--result-file=result.json")
    host = job.command("a", elastic.script("patient.py", PATIENT), "run", *job.where, *flags, job.sleeper, "a")
    host.says("store hosted")
    guest = job.agent("b", "--nnodes=1:2")
    both = job.round(2)
    guest.signal(signal.SIGSTOP)
    if begins == "after a first signal":
        host.signal(signal.SIGTERM)
        host.says("handing over")
    else:
        job.end("a")
        host.says("handing over")
        host.signal(signal.SIGTERM)
        host.says("signal received")
    time.sleep(0.6)  # signals within half a second are one request
    begun = time.monotonic()
    host.signal(signal.SIGTERM)
    assert host.code() == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 30
    assert host.err.count("handing over") == 1
    assert (elastic.cwd / "result.json").exists()
    kill_node(guest, both.pid("b"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_job_survives_the_end_of_its_store_host(job, how):
    """The state survives: it was handed over, or the survivor restores it in a new store."""
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
    job.ends_well(guest)


def test_one_of_two_survivors_hosts_the_store(job):
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
    job.ends_well(*left)

"""The store goes, comes back, sleeps or holds what nobody wrote; names collide; a clock is wrong."""

from __future__ import annotations

import json
import signal
from datetime import datetime

import psutil
import pytest
from job_of_nodes import eventually, kill, lives

from elastic_core.errors import ExitCode

pytestmark = pytest.mark.torch

UNREACHABLE = ExitCode.STORE_UNREACHABLE


def codes(*agents):
    return [agent.code() for agent in agents]


@pytest.mark.nightly
def test_the_store_is_gone_for_good(job):
    """Healthy workers run on for the grace, then every agent stops them, waits for the store, and says why it ends."""
    job.conf |= {"keep_alive_max_attempt": "50", "heartbeat_timeout": "0.5", "join_timeout": "25"}
    server = job.serve()
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    server.process.kill()
    for agent in agents:
        agent.says("store out of reach")
    assert all("stopping workers" not in agent.err for agent in agents)
    for agent in agents:
        agent.says('restart decided: cause=membership reason="the rendezvous store was unreachable for ')
        assert "after 15 s without a heartbeat" in agent.err
    eventually(lambda: not any(lives(first.pid(name)) for name in "ab"), "the workers to be stopped")
    assert codes(*agents) == [UNREACHABLE] * 2
    for agent in agents:
        assert "the rendezvous store at" in agent.report
        assert "refused" in agent.report
    assert len(job.rounds()) == 1


@pytest.mark.nightly
def test_the_store_comes_back_empty_after_the_grace(job):
    """The workers are stopped meanwhile, and start again in a round that costs no restart."""
    job.conf |= {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "10", "heartbeat_timeout": "0.5"}
    server = job.serve()
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    kill(first.pid("b"))
    second = job.round(2, after=first)
    server.process.kill()
    for agent in agents:
        agent.says("restart decided: cause=membership")
    eventually(lambda: not any(lives(second.pid(name)) for name in "ab"), "the workers to be stopped")
    again = job.serve("store-again")
    third = job.round(2, after=second)
    assert third.nodes == first.nodes
    assert third.restarts == second.restarts == {"1"}
    job.end()
    assert codes(*agents) == [0, 0]
    again.signal(signal.SIGTERM)
    assert again.code() == 0


def test_the_store_comes_back_empty_within_the_grace(job):
    """The nodes give it back what they know: workers run on, and the job can still form rounds, with the count of
    restarts that it had."""
    job.conf |= {"keep_alive_interval": "1", "keep_alive_max_attempt": "30", "heartbeat_timeout": "0.1"}
    server = job.serve()
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    kill(first.pid("a"))
    second = job.round(2, after=first)
    server.process.kill()
    for agent in agents:
        agent.says("store out of reach")
    again = job.serve("store-again")
    for agent in agents:
        agent.says("store is back")
    assert any("store lost its state" in agent.err for agent in agents)
    assert [found.port for found in job.rounds()] == [first.port, second.port]
    kill(second.pid("b"))
    third = job.round(2, after=second)
    assert third.nodes == first.nodes
    assert third.restarts == {"2"}
    job.end()
    assert codes(*agents) == [0, 0]
    again.signal(signal.SIGTERM)
    assert again.code() == 0


@pytest.mark.nightly
def test_the_store_sleeps(job):
    """For less than the grace: a warning, and nothing restarts. For longer: the workers are stopped, and start again
    when it wakes."""
    job.conf |= {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "30", "heartbeat_timeout": "0.5"}
    server = job.serve()
    agents = job.agents("a b", "--nnodes=1:2", "--max-restarts=3")
    first = job.round(2)
    server.signal(signal.SIGSTOP)
    for agent in agents:
        agent.says("store out of reach")
    server.signal(signal.SIGCONT)
    for agent in agents:
        agent.says("store is back")
    assert job.rounds()[-1].port == first.port
    server.signal(signal.SIGSTOP)
    for agent in agents:
        agent.says('restart decided: cause=membership reason="the rendezvous store was unreachable for ')
        assert "after 15 s without a heartbeat" in agent.err
    eventually(lambda: not any(lives(first.pid(name)) for name in "ab"), "the workers to be stopped")
    assert job.rounds()[-1].port == first.port
    server.signal(signal.SIGCONT)
    second = job.round(2, after=first)
    assert second.restarts == {"0"}
    job.end()
    assert codes(*agents) == [0, 0]


def test_two_agents_with_one_name(job):
    """The younger one ends and says what to do, when the elder has been seen to live; the job runs on."""
    job.conf |= {"keep_alive_max_attempt": "30"}
    elder, other = job.agents("a b", "--nnodes=2:3")
    two = job.round(2)
    younger = job.agent("c", "--nnodes=2:3", "--node-id=a")
    assert younger.code() == ExitCode.RENDEZVOUS_FAILED
    assert "the name a is taken by a live agent at 127.0.0.1" in younger.report
    assert "--node-id" in younger.report
    assert job.rounds()[-1].port == two.port
    job.end()
    assert codes(elder, other) == [0, 0]


SHIFTED = """
import os, time

now, shift = time.time, float(os.environ["CLOCK_SHIFT"])
time.time = lambda: now() + shift
"""


def test_nodes_whose_clocks_are_an_hour_off(job, elastic):
    """Nobody compares clocks: they take part like any other, are not missed, and their failures are told. Injected at
    the start of Python rather than by libfaketime, which breaks its time.sleep."""
    (elastic.cwd / "shifted").mkdir()
    elastic.script("shifted/sitecustomize.py", SHIFTED)
    shifted = {"PYTHONPATH": str(elastic.cwd / "shifted")}
    agents = [
        job.agent(name, "--nnodes=3", "--max-restarts=1", CLOCK_SHIFT=shift, **shifted)
        for name, shift in (("a", "0"), ("b", "3600"), ("c", "-3600"))
    ]
    first = job.round(3)
    kill(first.pid("b"))
    second = job.round(3, after=first)
    assert second.restarts == {"1"}
    job.end()
    assert codes(*agents) == [0, 0, 0]
    began = [datetime.fromisoformat(agent.err[:19]) for agent in agents]
    assert [round((other - began[0]).total_seconds() / 3600) for other in began] == [0, 1, -1]
    assert not any("no beat" in agent.err for agent in agents)


FOREIGN = {
    "corrupt": (b"\x80\x04\x95 a pickle, perhaps", "found data that is not JSON"),
    "newer": (json.dumps({"version": 99, "round": 7}).encode(), "of version 6, found version 99"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_state_that_is_not_ours(job, kind):
    """Who finds it when joining says what it expected and what it found."""
    data, found = FOREIGN[kind]
    server = job.serve()
    write_state(job.port, data)
    agent = job.agent("a", "--nnodes=1:2")
    assert agent.code() == ExitCode.RENDEZVOUS_FAILED
    assert "expected a rendezvous state of version 6" in agent.report
    assert found in agent.report
    assert "every node of a job needs the same version of elastic-core" in agent.report
    assert not job.rounds()
    server.signal(signal.SIGTERM)
    assert server.code() == 0


@pytest.mark.nightly
def test_a_state_that_was_spoilt_while_workers_run(job):
    """They run on: they do not need it. It is told at once and put right, and the next round forms."""
    server = job.serve()
    agent = job.agent("a", "--nnodes=1", "--max-restarts=3")
    first = job.round(1)
    write_state(job.port, b"spoilt")
    agent.says("state spoilt")
    assert agent.runs
    kill(first.pid("a"))
    job.round(1, after=first)
    job.end()
    assert agent.code() == 0
    server.signal(signal.SIGTERM)
    assert server.code() == 0


def write_state(port, data):
    """As somebody does who uses the same store and run id."""
    from elastic_c10d import create_backend

    from elastic_core.rendezvous import RendezvousParameters

    backend, _ = create_backend(RendezvousParameters("c10d", f"127.0.0.1:{port}", "job", 1, 1, is_host=False))
    try:
        found = backend.get_state()
        assert backend.set_state(data, found and found[1])[2]
    finally:
        backend.close()


@pytest.mark.nightly
def test_a_thousand_joins_and_leaves_leave_nothing_behind(job):
    """Threads, sockets and memory of this process, which takes part again and again, in ever new rounds."""
    from elastic_core.rendezvous import RendezvousParameters, get_rendezvous_handler

    server = job.serve()
    me = psutil.Process()

    def take_part():
        params = RendezvousParameters("c10d", job.endpoint, "job", 1, 1, is_host=False)
        handler = get_rendezvous_handler(params)
        number = handler.next_rendezvous().formed.number
        assert handler.leave("it was only a visit", 30)
        assert handler.shutdown()
        return number

    for _ in range(100):
        take_part()
    threads, files, memory = me.num_threads(), me.num_fds(), me.memory_info().rss
    numbers = [take_part() for _ in range(900)]
    assert numbers == list(range(101, 1001))
    eventually(lambda: me.num_threads() <= threads + 1, "no more threads than before")
    eventually(lambda: me.num_fds() <= files + 3, "no more open files than before")
    assert me.memory_info().rss - memory < 16 * 2**20
    server.signal(signal.SIGTERM)
    assert server.code() == 0

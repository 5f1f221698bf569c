"""The store fails, returns, sleeps or holds foreign data; names collide; a clock is wrong."""

from __future__ import annotations

import json
import signal
from datetime import datetime

import psutil
import pytest
from job_of_nodes import eventually, kill, lives

from elastic_core.errors import ExitCode
from elastic_core.rendezvous.codec import VERSION

pytestmark = pytest.mark.torch


@pytest.mark.nightly
def test_lost_store_ends_the_job_after_its_timeout(job):
    """Healthy workers run until the failure timeout. Then every agent stops them, waits for the store, and reports why
    it ends."""
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
    for agent in agents:
        assert agent.code() == ExitCode.STORE_UNREACHABLE
        assert "the rendezvous store at" in agent.report
        assert "refused" in agent.report
    assert len(job.rounds()) == 1


@pytest.mark.nightly
def test_store_empty_after_fencing_costs_no_restart(job):
    """The workers are stopped, and start again in a round that costs no restart."""
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
    job.serve("store-again")
    third = job.round(2, after=second)
    assert third.nodes == first.nodes
    assert third.restarts == second.restarts == {"1"}
    job.ends_well(*agents)


def test_emptied_store_gets_its_state_back(job):
    """The nodes restore what they know: workers run on, and the job can still form rounds with the right restart
    count."""
    job.conf |= {"keep_alive_interval": "1", "keep_alive_max_attempt": "30", "heartbeat_timeout": "0.1"}
    server = job.serve()
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    kill(first.pid("a"))
    second = job.round(2, after=first)
    server.process.kill()
    for agent in agents:
        agent.says("store out of reach")
    job.serve("store-again")
    for agent in agents:
        agent.says("store is back")
    assert any("store lost its state" in agent.err for agent in agents)
    assert [found.port for found in job.rounds()] == [first.port, second.port]
    kill(second.pid("b"))
    third = job.round(2, after=second)
    assert third.nodes == first.nodes
    assert third.restarts == {"2"}
    job.ends_well(*agents)


@pytest.mark.nightly
def test_only_a_long_store_pause_stops_workers(job):
    """A pause shorter than the failure timeout is a warning, and nothing restarts. After a longer one, the workers are
    stopped, and start again when the store wakes."""
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
    job.ends_well(*agents)


def test_second_agent_of_a_name_is_refused(job):
    """The younger agent ends with advice once the older one has proved alive. The job continues."""
    job.conf |= {"keep_alive_max_attempt": "30"}
    elder, other = job.agents("a b", "--nnodes=2:3")
    two = job.round(2)
    younger = job.agent("c", "--nnodes=2:3", "--node-id=a")
    assert younger.code() == ExitCode.RENDEZVOUS_FAILED
    assert "the name a is taken by a live agent at 127.0.0.1" in younger.report
    assert "--node-id" in younger.report
    assert job.rounds()[-1].port == two.port
    job.ends_well(elder, other)


SHIFTED = """
import os, time

now, shift = time.time, float(os.environ["CLOCK_SHIFT"])
time.time = lambda: now() + shift
"""


def test_wrong_clocks_harm_nothing(job, elastic):
    """Nodes never compare clocks: these take part like any other, are not considered lost, and their failures are
    reported. The shift is injected when Python starts; libfaketime would break time.sleep."""
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
    job.ends_well(*agents)
    began = [datetime.fromisoformat(agent.err[:19]) for agent in agents]
    assert [round((other - began[0]).total_seconds() / 3600) for other in began] == [0, 1, -1]
    assert not any("no beat" in agent.err for agent in agents)


FOREIGN = {
    "corrupt": (b"\x80\x04\x95 a pickle, perhaps", "found data that is not JSON"),
    "newer": (json.dumps({"version": 99, "round": 7}).encode(), f"of version {VERSION}, found version 99"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_state_is_an_error(job, kind):
    """A node that joins reports what it expected and what it found."""
    data, found = FOREIGN[kind]
    job.serve()
    write_state(job.port, data)
    agent = job.agent("a", "--nnodes=1:2")
    assert agent.code() == ExitCode.RENDEZVOUS_FAILED
    assert f"expected a rendezvous state of version {VERSION}" in agent.report
    assert found in agent.report
    assert "use the same version of elastic-core on every node" in agent.report
    assert not job.rounds()


@pytest.mark.nightly
def test_overwritten_state_is_repaired(job):
    """The workers do not need the state, so they run on. It is logged and repaired immediately, and the next round
    forms."""
    job.serve()
    agent = job.agent("a", "--nnodes=1", "--max-restarts=3")
    first = job.round(1)
    write_state(job.port, b"spoilt")
    agent.says("state overwritten")
    assert agent.runs
    kill(first.pid("a"))
    job.round(1, after=first)
    job.ends_well(agent)


def write_state(port, data):
    """As another program does that uses the same store and run id."""
    from elastic_c10d import create_backend

    from elastic_core.rendezvous import RendezvousParameters

    backend, _ = create_backend(RendezvousParameters("c10d", f"127.0.0.1:{port}", "job", 1, 1, is_host=False))
    try:
        found = backend.get_state()
        assert backend.set_state(data, found and found[1])[2]
    finally:
        backend.close()


@pytest.mark.nightly
def test_thousand_joins_and_leaves_leak_nothing(job):
    """Threads, sockets and memory of this process, which joins and leaves again and again."""
    from elastic_core.rendezvous import RendezvousParameters, get_rendezvous_handler

    job.serve()
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

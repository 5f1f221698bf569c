"""Lost and silent nodes, and their cost for the other nodes; with default timeouts where the test is about a time."""

from __future__ import annotations

import os
import signal
import time
import uuid

import pytest
from job_of_nodes import SLEEPER, SOON, eventually, kill, kill_node, lives

from elastic_core.errors import ExitCode

pytestmark = [pytest.mark.nightly, pytest.mark.torch]

DEFAULTS = {"keep_alive_interval": "1", "keep_alive_max_attempt": "5"}

# When the node called slow is asked to end, it writes a checkpoint for a long time.
SAVE = """
import signal


def save(*_):
    pathlib.Path("saving").touch()
    time.sleep(8)
    pathlib.Path("saving").unlink()
    os._exit(0)


if node == "slow":
    signal.signal(signal.SIGTERM, save)
"""
WAITS = "while not all_have_written"
SAVER = SLEEPER.replace('"saw": None', '"saw": os.path.exists("saving")').replace(WAITS, SAVE + WAITS)


def host_first(agents):
    return sorted(agents, key=lambda agent: "store hosted" not in agent.err)


def test_suspended_store_host_restarts_no_worker(job):
    """No node can reach the store, so no node can be considered lost."""
    job.conf |= DEFAULTS
    agents = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    host, guest = host_first(agents)
    host.signal(signal.SIGSTOP)
    time.sleep(30)  # six failure timeouts
    assert "store out of reach" in guest.err
    host.signal(signal.SIGCONT)
    guest.says("store is back")
    time.sleep(6)  # a node wrongly considered lost would be reported by now
    assert job.rounds() == [first]
    job.ends_well(*agents)
    assert all("restart decided" not in agent.err for agent in agents)


@pytest.mark.parametrize("may_host", [True, False], ids=["another may host", "no other may host"])
def test_finished_store_host_disturbs_no_worker(job, may_host):
    """Without the store the others would lose their workers, whatever the host's exit barrier timeout is."""
    job.conf |= DEFAULTS
    host = job.agent("a", "--nnodes=2", "--exit-barrier-timeout=1")
    host.says("store hosted")
    job.conf |= {} if may_host else {"is_host": "false"}
    guest = job.agent("b", "--nnodes=2", "--exit-barrier-timeout=1")
    first = job.round(2)
    job.end(host.name)
    if may_host:
        guest.says("store taken over")
        assert host.code() == 0
    else:
        host.says("exit barrier prolonged")
    time.sleep(7)  # longer than a failure timeout
    assert lives(first.pid(guest.name))
    job.end(guest.name)
    assert [host.code(), guest.code()] == [0, 0]
    assert job.rounds() == [first]


def test_dead_spare_gets_no_seat(any_job):
    any_job.conf |= {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "6", "lease_ttl": "3"}
    if any_job.backend == "c10d":
        del any_job.conf["lease_ttl"]
        any_job.serve()
    members = any_job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = any_job.round(2)
    dead = any_job.agent("c", "--nnodes=2", "--max-restarts=3")
    dead.says("this node is a spare")
    dead.process.kill()
    time.sleep(10)  # three failure timeouts
    spare = any_job.agent("d", "--nnodes=2", "--max-restarts=3")
    spare.says("this node is a spare")
    kill_node(members[0], first.pid("a"))
    second = any_job.round(2, after=first)
    assert set(second.nodes) == {"b", "d"}
    assert "round=2" in members[1].err
    assert "round=3" not in members[1].err
    any_job.ends_well(members[1], spare)


def test_stopping_member_keeps_its_seat_despite_a_spare(job, elastic):
    """It writes a checkpoint for 8 s. No round starts in that time, and it keeps its seat."""
    job.conf |= {**DEFAULTS, "close_timeout": "2"}
    script = elastic.script("saver.py", SAVER)
    job.serve()
    slow, other = job.agents("slow other", "--nnodes=2", "--max-restarts=3", script=script)
    first = job.round(2)
    spare = job.agent("spare", "--nnodes=2", "--max-restarts=3", script=script)
    spare.says("this node is a spare")
    kill(first.pid("other"))
    slow.says("stopping workers")
    second = job.round(2, after=first)
    assert second.all("saw") == [False, False]
    assert sorted(second.nodes) == ["other", "slow"]
    kill_node(other, second.pid("other"))  # the next round does not wait for a lost node
    third = job.round(2, after=second)
    assert sorted(third.nodes) == ["slow", "spare"]
    job.ends_well(slow, spare)


def test_next_round_waits_for_the_leaving_workers(job, elastic):
    """They write a checkpoint for 8 s, from which the other node will resume."""
    script = elastic.script("saver.py", SAVER)
    job.serve()
    slow, other = job.agents("slow other", "--nnodes=1:2", "--max-restarts=3", script=script)
    first = job.round(2)
    slow.signal(signal.SIGTERM)
    other.says("restart decided: cause=membership")
    second = job.round(1, after=first)
    assert second.all("saw") == [False]
    job.end()
    assert [slow.code(), other.code()] == [128 + signal.SIGTERM, 0]


def test_finished_nodes_exit_disturbs_no_worker(any_job):
    """The other nodes' workers continue in the same round, over etcd as over c10d."""
    any_job.conf |= SOON
    if any_job.backend == "c10d":
        any_job.serve()
    drained, killed, last = any_job.agents("drained killed last", "--nnodes=3", "--max-restarts=3")
    first = any_job.round(3)
    for agent in (drained, killed):
        any_job.end(agent.name)
        agent.says('waiting_for="the workers of other nodes to succeed"')
    assert any_job.command("drain", "drain", *any_job.where, "drained").code() == 0
    assert drained.code() == 0
    killed.signal(signal.SIGKILL)
    time.sleep(12)  # with SOON, it would have been considered lost by now
    assert any_job.rounds() == [first]
    assert lives(first.pid("last"))
    any_job.end("last")
    assert last.code() == 0
    assert "restart decided" not in last.err


def test_agent_restarted_under_its_name_rejoins(elastic, tmp_path, etcd_endpoint):
    """Leases may outlive the failure timeout; until then the new agent is not refused."""
    from job_of_nodes import Job

    job = Job(elastic.start_to_files, tmp_path, "etcd", etcd_endpoint, prefix=uuid.uuid4().hex, **DEFAULTS)
    job.conf |= {"lease_ttl": "15"}
    a, b = job.agents("a b", "--nnodes=2", "--max-restarts=3")
    first = job.round(2)
    kill_node(b, first.pid("b"))
    b.code()
    again = job.agent("b", "--nnodes=2", "--max-restarts=3")
    second = job.round(2, after=first)
    assert sorted(second.nodes) == ["a", "b"]
    job.ends_well(a, again)


def test_agent_that_leaves_while_joining_notifies_peers(any_job):
    """The heartbeat interval is long, and no node waits for the next heartbeat."""
    any_job.conf |= {"keep_alive_interval": "30", "keep_alive_max_attempt": "5"}
    waiting = any_job.agent("a", "--nnodes=2")
    waiting.says("1 of 2 nodes joined")
    waiting.signal(signal.SIGTERM)
    assert waiting.code(20) == 128 + signal.SIGTERM
    assert "notified=true" in waiting.err


def test_agents_that_are_pid_1_of_containers_form_a_round(job, elastic):
    """They have the same host name and process id, and were given no node id."""
    if os.geteuid() != 0:
        pytest.skip("only root may make name spaces")
    elastic.through = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    agents = [job.command(name, "run", *job.where, "--nnodes=2", job.sleeper, name) for name in "ab"]
    job.round(2)
    job.ends_well(*agents)


def test_nodes_cut_off_from_each_other_share_no_round(job, elastic, machines):
    """They reach the store, so none is lost. The round of all three fails; then the two that can connect continue."""
    nets = machines(3)
    job.endpoint = f"{nets[0].address}:{job.port}"
    job.conf |= DEFAULTS
    nets.apart(nets[1], nets[2])
    agents = []
    for number, machine in enumerate(nets, 1):
        elastic.through = machine.through
        flags = ("--nnodes=2:3", "--max-restarts=3")
        agents.append(job.agent(f"n{number}", *flags, script=job.trainer, **machine.environment))
        agents[0].says("1 of 2 nodes joined")  # so it gets rank 0: torch would try to reach rank 0 for half an hour
    two = job.round(2, timeout=240)
    assert "n1" in two.nodes
    job.end()
    eventually(lambda: agents[0].process.poll() is not None, "the job to end")
    assert sum(agent.code() == 0 for agent in agents) >= 2


@pytest.mark.parametrize("least", [1, 2])
def test_lost_node_does_not_continue_a_stopped_job(elastic, tmp_path, etcd_endpoint, least):
    """It was suspended when a user stopped the job. A new run with the same id forms a round without it."""
    from job_of_nodes import Job

    job = Job(elastic.start_to_files, tmp_path, "etcd", etcd_endpoint, prefix=uuid.uuid4().hex, **SOON)
    job.conf |= {"lease_ttl": "60"}  # its entry is there when it comes back
    flags = (f"--nnodes={least}:2", "--max-restarts=3")
    a, b = job.agents("a b", *flags)
    first = job.round(2)
    b.signal(signal.SIGSTOP)
    a.says("node lost" if least == 2 else "round=2")
    stop = job.command("stop", "stop", *job.where, f"--rdzv-conf={job._conf}")
    assert stop.code() == 0
    assert "missing: b; " in stop.out
    assert a.code() == ExitCode.DRAINED
    b.signal(signal.SIGCONT)
    assert b.code() == ExitCode.DRAINED
    assert not lives(first.pid("b"))
    again = job.agents("c d"[: 2 * least], *flags)
    job.round(least, after=job.rounds()[-1])
    job.ends_well(*again)

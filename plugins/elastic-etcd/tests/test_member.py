"""Members that agents serve, as real processes on loopback: each agent has its own ports."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import replace

import psutil
import pytest
from cluster import LONG
from elastic_etcd.client.channel import Security
from elastic_etcd.server.cluster import Cluster, Place
from elastic_etcd.server.gateway import Gateway, Refused, ask, is_healthy
from elastic_etcd.server.member import ServedCluster

from elastic_core.errors import ConfigurationError
from elastic_core.support.sockets import PortReservation, resolve_host

pytestmark = pytest.mark.integration


def command_of(pid):
    return " ".join(psutil.Process(pid).cmdline())


@pytest.fixture
def places():
    """`places(n)`: n places at reserved ports."""
    held = []

    def make(count, scheme="http"):
        held.extend(PortReservation() for _ in range(2 * count))
        ports = [it.port for it in held[-2 * count :]]
        return tuple(Place("127.0.0.1", ports[2 * at], ports[2 * at + 1], scheme) for at in range(count))

    yield make
    for reservation in held:
        reservation.release()


@pytest.fixture
def agents(places, tmp_path):
    """`agents(n)`: n agents, each with its member; at the end, no folder may be left."""
    made = []

    def make(count, run_id="job", tls=None, at=()):
        cluster = Cluster(run_id, at or places(count, "https" if tls else "http"))
        for _ in range(count):
            made.append(ServedCluster(cluster, tls, parent=str(tmp_path)))
            made[-1].start()
        return made[-count:]

    yield make
    for agent in made:
        agent.stop()
    assert not list(tmp_path.glob("elastic-etcd-*"))


def votes(agent, security=None):
    """The peer URLs of members that vote and serve, according to the agent's member."""
    try:
        members = ask(f"{agent.own.url}/v3/cluster/member/list", {}, security=security)["members"]
        is_healthy(agent.own.url, security=security)
    except (OSError, Refused, ValueError, KeyError):
        return set()
    return {it["peerURLs"][0] for it in members if it.get("clientURLs") and not it.get("isLearner")}


def ids(agent):
    return {it["peerURLs"][0]: it["ID"] for it in ask(f"{agent.own.url}/v3/cluster/member/list", {})["members"]}


def together(eventually, agents, security=None):
    everybody = {agent.own.peer_url for agent in agents}
    eventually(lambda: all(votes(agent, security) == everybody for agent in agents), LONG, "votes of all")


@pytest.mark.parametrize("count", [1, 3])
def test_agents_form_a_cluster(agents, eventually, count):
    made = agents(count)
    assert len({agent.own for agent in made}) == count
    together(eventually, made)
    assert all(agent.hosts and agent.diagnosis() == "" for agent in made)
    roles = [line.rpartition(" ")[2] for line in made[0].shown()]
    assert sorted(roles) == ["follows"] * (count - 1) + ["leads"]


def test_agent_without_a_place_serves_no_member(agents, eventually):
    made = agents(1)
    together(eventually, made)
    other = ServedCluster(Cluster("job", (made[0].own,)))
    other.start()
    assert other.own is None
    assert not other.hosts
    assert other.diagnosis() == ""
    other.stop()


@pytest.mark.parametrize("before", ["", "192.0.2.1"], ids=["no address", "the address of the pod before"])
def test_member_starts_once_its_host_name_resolves(places, eventually, tmp_path, before):
    """As can happen with a pod's name."""
    (place,), named = places(1), threading.Event()

    def resolver(host, port):
        if not named.is_set() and not before:
            raise socket.gaierror(socket.EAI_NONAME, "not yet")
        return resolve_host("127.0.0.1" if named.is_set() else before, port)

    agent = ServedCluster(Cluster("job", (replace(place, host="pod-0"),)), parent=str(tmp_path), resolve=resolver)
    agent.start()
    assert agent.own is None
    named.set()
    eventually(lambda: agent.hosts, LONG, "the member")
    agent.stop()


@pytest.mark.parametrize("keeper", [False, True])
def test_data_folders_of_dead_members_are_removed(agents, eventually, tmp_path, keeper):
    """After the kill of a member or of its keeper, and from a machine that was off."""
    some = agents(3)
    eventually(lambda: len(votes(some[0])) == 3, LONG)
    [own] = [path for path in tmp_path.glob("elastic-etcd-*") if str(path) in command_of(some[1].pid)]
    left = own.with_name(own.name[:-8] + "earlier1")
    left.mkdir()
    before, where = some[1].pid, some[1].own.peer_url
    replaced = ids(some[0])[where]
    os.kill(psutil.Process(before).ppid() if keeper else before, signal.SIGKILL)
    eventually(lambda: some[1].pid not in (0, before) and len(votes(some[0])) == 3, LONG)
    eventually(lambda: ids(some[0]).get(where) not in (None, replaced), LONG)
    assert not own.exists()
    assert not left.exists()
    assert len(list(tmp_path.glob("elastic-etcd-*"))) == 3


def test_two_members_leave_at_the_same_time(agents, eventually, background):
    """Their removals conflict, so they try again. The last member does not leave."""
    made = agents(3)
    together(eventually, made)
    leaving = [background(lambda agent=agent: agent.leave(LONG)) for agent in made[:2]]
    assert [one.result(2 * LONG) for one in leaving] == [True, True]
    for agent in made[:2]:
        assert not agent.hosts
        agent.stop()
    together(eventually, made[2:])
    assert not made[2].leave()
    assert made[2].hosts


def test_lost_majority_is_diagnosed(agents, eventually):
    first, second, third = made = agents(3)
    together(eventually, made)
    lost = [second, third]
    for agent in lost:
        os.kill(agent.pid, signal.SIGSTOP)
    message = eventually(first.diagnosis, LONG, "the diagnosis")
    assert "1 of 3 members answer, and 2 are needed; bring back 1 of" in message
    assert all(agent.own.address in message for agent in lost)
    for agent in lost:
        os.kill(agent.pid, signal.SIGCONT)
    together(eventually, made)
    assert first.diagnosis() == ""


def test_members_over_tls_refuse_clients_without_certificate(agents, eventually, certificates):
    tls = Security(certificates.ca, certificates.cert, certificates.key)
    made = agents(3, tls=tls)
    together(eventually, made, Gateway(tls).context())
    with pytest.raises(OSError, match=r"CERTIFICATE_VERIFY_FAILED|certificate required|reset|EOF"):
        ask(f"{made[0].own.url}/v3/cluster/member/list", {})


def test_missing_serve_folder_is_refused(places, tmp_path):
    agent = ServedCluster(Cluster("job", places(1)), parent=str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match=r"serve_folder: the folder .* does not exist"):
        agent.start()
    agent.stop()


def test_member_waits_for_its_taken_port_and_names_it(agents, places, eventually):
    (place,) = places(1)
    with socket.create_server((place.host, place.peer_port), reuse_port=True):
        (agent,) = agents(1, at=(place,))
        problem = f"port {place.peer_port} of 127.0.0.1: already in use"
        eventually(lambda: agent.diagnosis().startswith(problem), LONG, "the reason")
    assert eventually(lambda: serves(place), LONG, "the member")
    assert agent.diagnosis() == ""


def test_member_that_cannot_start_is_tried_less_and_less_often(agents, eventually, tmp_path, monkeypatch):
    """Each attempt changes the cluster."""
    starts, program = tmp_path / "starts", tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\n[ $1 = --version ] || {{ date +%s.%N >> {starts}; echo no space here; }}\n")
    program.chmod(0o755)
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", str(program))
    (agent,) = agents(1)
    eventually(lambda: starts.exists() and len(starts.read_text().split()) >= 4, LONG, "four starts")
    eventually(lambda: agent.diagnosis() == "etcd exited (exit code 0): no space here", LONG, "the reason")
    first, *_, last = map(float, starts.read_text().split()[:4])
    assert last - first > 2.0  # without pauses, less than a second


def test_member_that_cannot_be_launched_leaves_no_learner(agents, places, eventually, tmp_path):
    """The cluster would treat a learner without a process as a failed member."""
    at, folder = places(3), tmp_path / "own"
    folder.mkdir()
    made = agents(2, at=at)
    agent = ServedCluster(Cluster("job", at), parent=str(folder))
    agent.start()
    together(eventually, [*made, agent])
    folder.rename(tmp_path / "away")
    os.kill(agent.pid, signal.SIGKILL)
    where = agent.own.peer_url
    eventually(lambda: "No such file" in agent.diagnosis(), LONG, "the reason")
    eventually(lambda: all(_absent(where, made[0]) for _ in range(10)), LONG, "a cluster without the member")
    (tmp_path / "away").rename(folder)
    together(eventually, [*made, agent])
    agent.stop()


def test_member_that_exits_at_once_leaves_no_learner(agents, places, eventually, tmp_path, monkeypatch):
    at = places(3)
    made = agents(2, at=at)
    eventually(lambda: len(votes(made[0])) == 2, LONG, "two votes")
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho etcd Version: 3.5.1\n[ $1 = --version ]\n")
    program.chmod(0o755)
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", str(program))
    [third] = agents(1, at=at)
    where = next(place.peer_url for place in at if place not in (made[0].own, made[1].own))
    eventually(lambda: where in ids(made[0]), LONG, "a learner")
    eventually(lambda: all(_absent(where, made[0]) for _ in range(10)), LONG, "a cluster without the learner")
    third.stop()


def _absent(where, agent):
    time.sleep(0.1)
    return where not in ids(agent)


def test_job_reserves_its_place_separately(agents, places, eventually):
    """Another job with the same hosts must not use this job's cluster without saying so."""
    (place,) = places(1)
    together(eventually, agents(1, at=(place,)))
    (other,) = agents(1, "another", at=(place,))
    eventually(lambda: f"port {place.port} of 127.0.0.1: already in use" in other.diagnosis(), LONG, "the reason")


def serves(place):
    try:
        return is_healthy(place.url)
    except OSError:
        return False

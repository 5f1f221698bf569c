"""Agents serve their own etcd, one member on each of three machines, and the job survives the loss of any one. The
machines are network namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime

import pytest
from job_of_nodes import Job, eventually

pytestmark = [pytest.mark.nightly, pytest.mark.torch]

FLAGS = ("--nnodes=2:3", "--max-restarts=3")
LOSSES = int(os.environ.get("ELASTIC_TEST_LOSSES", "3"))
"""The number of machines lost one after the other; `pytest -s` prints the times."""

# Prints a member's view of the cluster; runs in the machine's network namespace.
ASK = """
import json, sys, urllib.request
found = {}
for path in ("cluster/member/list", "maintenance/status"):
    with urllib.request.urlopen(f"http://{sys.argv[1]}:2379/v3/{path}", b"{}", timeout=2) as answer:
        found |= json.load(answer)
print(json.dumps(found))
"""


class Served:
    """A job with an agent on each machine, whose etcd the agents serve."""

    def __init__(self, elastic, machines, folder, count, members):
        self.machines = machines(count)
        self.elastic = elastic
        self.job = Job(elastic.start_to_files, elastic.cwd, "etcd", "unused")
        self.job.endpoint = ",".join(machine.address for machine in list(self.machines)[:members])
        self.job.conf = {"last_call_timeout": "2", "serve": "true", "serve_folder": folder}
        self.agents = {}
        self.times = 0

    def start(self, number, *flags, **environment):
        machine = self.machines[number]
        self.times += 1
        name = f"n{number}" if number not in self.agents else f"n{number}.{self.times}"
        self.elastic.through = machine.through
        self.agents[number] = self.job.agent(name, *(flags or FLAGS), **machine.environment, **environment)
        self.elastic.through = []
        return self.agents[number]

    def formed(self, *flags):
        """Start all agents; returns their first round."""
        for number in range(len(self.machines)):
            self.start(number, *flags)
        return self.job.round(len(self.machines))

    def formed_at(self, numbers):
        """The wall-clock time at which the last of these agents logged that its last round had formed."""
        lines = [line for n in numbers for line in self.agents[n].err.splitlines() if " round formed: " in line]
        return max(datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp() for line in lines)

    def ask(self, number):
        """The view of a machine's member; without members if it does not answer."""
        machine = self.machines[number]
        command = [*machine.through, sys.executable, "-c", ASK, machine.address]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180).stdout
        return json.loads(output) if output else {"members": []}

    def status(self, number):
        """What `elastic status` prints on a machine."""
        conf = f"--rdzv-conf={','.join(f'{name}={value}' for name, value in self.job.conf.items())}"
        where = ("--rdzv-backend=etcd", f"--rdzv-endpoint={self.job.endpoint}", "--rdzv-id=job")
        command = [*self.machines[number].through, sys.executable, "-m", "elastic_core", "status", *where, conf]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def voters(self, number):
        """The machines whose members vote and serve, according to one machine's member."""
        found = self.ask(number)["members"]
        hosts = [it["clientURLs"][0] for it in found if it.get("clientURLs") and not it.get("isLearner")]
        return {n for n, machine in enumerate(self.machines) if f"http://{machine.address}:2379" in hosts}

    def vote(self, numbers):
        """Wait until each of these machines' members lists exactly these as voters."""
        eventually(lambda: all(self.voters(number) == numbers for number in numbers), f"votes of {numbers}")

    def settled(self):
        """Wait until etcd accepts a change of its members: 5 s after they have all connected."""
        until = time.monotonic() + 6.0
        eventually(lambda: time.monotonic() > until, "the time to pass")

    def leader(self):
        """The number of the machine whose member leads."""
        for number in self.agents:
            found = self.ask(number)
            if found["members"] and found["leader"] == found["header"]["member_id"]:
                return number
        return None


@pytest.fixture
def served(elastic, machines):
    """Makes jobs whose members keep their data in memory; it is removed at the end."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        yield lambda count=3, members=3: Served(elastic, machines, folder, count, members)


def test_job_forms_and_ends_with_served_etcd(served):
    """One agent starts much later than the other two; members leave last, without an outage."""
    made = served()
    made.start(2)
    made.start(0)
    two = made.job.round(2)
    made.start(1)
    three = made.job.round(3, after=two)
    made.vote({0, 1, 2})
    begun = time.monotonic()
    made.job.ends_well(*made.agents.values())
    print(f"ended after {time.monotonic() - begun:.2f} s")
    assert len(three.nodes) == 3
    assert "store out of reach" not in "".join(agent.err for agent in made.agents.values())


def test_cluster_shrinks_as_agents_are_terminated(served):
    """The cluster shrinks with the job, down to one member."""
    made = served()
    last = made.formed("--nnodes=1:3", "--max-restarts=3")
    made.settled()
    for number, left in ((made.leader(), 2), (None, 1)):
        number = made.leader() if number is None else number
        agent = made.agents.pop(number)
        begun = time.monotonic()
        agent.signal(signal.SIGTERM)
        last = made.job.round(left, after=last)
        print(f"next round after {time.monotonic() - begun:.2f} s")
        assert agent.code() == 128 + signal.SIGTERM
        print(f"gone after {time.monotonic() - begun:.2f} s")
        assert "etcd member left" in agent.err
        made.vote(set(made.agents))
        made.settled()
    made.job.ends_well(*made.agents.values())


def test_job_survives_loss_of_each_machine_in_turn(served):
    """Each loss costs two rounds: one without the machine, and one with it. Its member votes before the next loss."""
    made = served()
    last = made.formed()
    made.vote({0, 1, 2})
    for loss in range(LOSSES):
        number = loss % 3
        role = "leader" if made.leader() == number else "follower"
        before, begun = last, time.time()
        made.machines[number].off()
        last = made.job.round(2, after=last)
        lost = made.formed_at({0, 1, 2} - {number}) - begun
        made.machines[number].mend()
        begun = time.monotonic()
        made.start(number)
        last = made.job.round(3, after=last)
        made.vote({0, 1, 2})
        back = time.monotonic() - begun
        print(f"loss {loss}: {role} on n{number}: next round after {lost:.2f} s, votes again after {back:.2f} s")
        rounds = [found.port for found in made.job.rounds()]
        assert rounds.index(last.port) - rounds.index(before.port) == 2
        assert last.restarts == {"0"}
    print(f"term {made.ask(0)['header']['raft_term']}")
    made.job.ends_well(*made.agents.values())


def test_job_continues_when_etcd_leader_cannot_send(served):
    """The leader receives packets, but sends none; the other members elect another leader."""
    made = served()
    first = made.formed()
    made.vote({0, 1, 2})
    number = made.leader()
    leader, others = made.machines[number], [made.machines[n] for n in {0, 1, 2} - {number}]
    begun = time.monotonic()
    for other in others:
        leader.loses(other)
    second = made.job.round(2, after=first)
    print(f"next round after {time.monotonic() - begun:.2f} s")
    assert second.restarts == {"0"}
    for other in others:
        leader.finds(other)
    third = made.job.round(3, after=second)
    assert third.restarts == {"0"}
    made.vote({0, 1, 2})
    made.job.ends_well(*made.agents.values())


def test_loss_of_two_in_three_machines_ends_the_job_with_advice(served):
    """The agent that is left and the one that restarts without data both report the lost majority."""
    made = served()
    made.job.conf |= {"outage_grace": "0", "join_timeout": "30"}
    made.formed()
    made.vote({0, 1, 2})
    for number in (1, 2):
        made.machines[number].off()
    left = made.agents[0]
    left.says(
        "lost its majority: 1 of 3 members answer, and 2 are needed; bring back 1 of 10.97.0.2:2379, 10.97.0.3:2379"
    )
    made.machines[1].mend()
    back = made.start(1)
    back.says("lost its majority: 1 of 3 members answer, and 2 are needed")
    assert left.code() == back.code() == 4
    assert "stop all agents, then start the job again" in left.report


def test_job_recovers_when_two_cut_off_machines_return(served):
    """The cut-off members keep their data."""
    made = served()
    first = made.formed()
    made.vote({0, 1, 2})
    for number in (1, 2):
        made.machines[number].cut()
    made.agents[0].says("lost its majority")
    for number in (1, 2):
        made.machines[number].mend()
    made.agents[0].says("store is back")
    made.vote({0, 1, 2})
    last = made.job.rounds()[-1]
    assert (len(last.lines), last.restarts) == (3, {"0"})
    assert first.restarts == {"0"}
    made.job.ends_well(*made.agents.values())


def test_node_without_a_member_survives_loss_of_a_member(served):
    """A node without a member is an ordinary client."""
    made = served(4, 3)
    four = made.formed("--nnodes=2:4", "--max-restarts=3")
    made.vote({0, 1, 2})
    made.machines[0].off()
    three = made.job.round(3, after=four)
    assert sorted(three.nodes) == ["n1", "n2", "n3"]
    status = made.status(3)
    assert "10.97.0.1:2379 does not answer" in status
    assert status.count(" leads") == status.count(" follows") == 1
    made.job.ends_well(*(made.agents[number] for number in (1, 2, 3)))


def test_job_survives_loss_of_two_in_five_machines(served):
    """Each agent replaces its own member; etcd adds the first once the second has removed its old member."""
    made = served(5, 5)
    five = made.formed("--nnodes=3:5", "--max-restarts=3")
    made.vote({0, 1, 2, 3, 4})
    for number in (0, 4):
        made.machines[number].off()
    three = made.job.round(3, after=five)
    made.settled()
    for number in (0, 4):
        made.machines[number].mend()
        made.start(number, "--nnodes=3:5", "--max-restarts=3")
    begun = time.monotonic()
    made.vote({0, 1, 2, 3, 4})
    print(f"votes again after {time.monotonic() - begun:.2f} s")
    last = made.job.round(5, after=three)
    assert last.restarts == {"0"}
    made.job.ends_well(*made.agents.values())


def test_replaced_host_does_not_become_a_member_again(served):
    """The steps of `docs/guides/etcd.md`."""
    made = served(4, 3)
    made.start(0)
    made.start(1)
    made.start(2)
    three = made.job.round(3)
    made.vote({0, 1, 2})
    made.settled()
    made.machines[2].off()
    two = made.job.round(2, after=three)
    etcdctl = [*made.machines[0].through, "etcdctl", f"--endpoints={made.machines[0].address}:2379"]
    etcd = {**os.environ, "ETCDCTL_API": "3"}
    listed = subprocess.run([*etcdctl, "member", "list"], env=etcd, capture_output=True, text=True, check=True).stdout
    [gone] = [line.split(",")[0] for line in listed.splitlines() if made.machines[2].address in line]
    subprocess.run([*etcdctl, "member", "remove", gone], env=etcd, capture_output=True, check=True)
    endpoint = made.job.endpoint
    made.job.endpoint = ",".join(made.machines[number].address for number in (0, 1, 3))
    made.start(3)
    three = made.job.round(3, after=two)
    made.vote({0, 1, 3})
    made.job.endpoint = endpoint
    made.machines[2].mend()
    made.start(2)
    made.agents[2].says("http://10.97.0.4:2380, which --rdzv-endpoint does not list")
    assert three.restarts == {"0"}
    made.job.ends_well(*(made.agents[number] for number in (0, 1, 3)))

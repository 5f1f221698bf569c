"""Random faults in an etcd that agents serve on three machines, without a job: a writer on a fourth machine records the
acknowledged writes and finds all of them at the end.

The machines are network namespaces. A seed chooses the faults; `ELASTIC_TEST_SCHEDULES` sets the number of seeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from cluster import make_certificates
from elastic_testing.machines import Machines, missing
from job_of_nodes import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing()), reason=missing())]

SCHEDULES = int(os.environ.get("ELASTIC_TEST_SCHEDULES", "4"))
ADDRESSES = tuple(f"10.97.0.{number}" for number in (1, 2, 3))
LONG = 180.0

AGENT = """
import json, signal, sys, threading
from elastic_etcd.client.channel import Security
from elastic_etcd.server.cluster import Cluster, Place
from elastic_etcd.server.member import ServedCluster

own, folder, hosts, tls = json.loads(sys.argv[1])
places = tuple(Place(host, 2379, 2380, "https" if tls else "http") for host in hosts)
served = ServedCluster(Cluster("job", places), Security(*tls) if tls else None, own, folder)
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
served.start()
over.wait()
served.stop()
"""

WRITER = """
import json, sys
from elastic_etcd.client.channel import Security
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.errors import EtcdUnreachable
from elastic_etcd.client.values import Put, Transaction

hosts, tls = json.loads(sys.argv[1])
client = EtcdClient([f"{host}:2379" for host in hosts], Security(*tls) if tls else None, timeout=2.0)
number = 0
print("begins", flush=True)
while True:
    number += 1
    try:
        done = client.transact(Transaction([], [Put(b"/written/%d" % number, b"x")]))
    except EtcdUnreachable:
        continue
    print(number, done.revision, flush=True)
"""

READER = """
import json, sys
from elastic_etcd.client.channel import Security
from elastic_etcd.client.client import EtcdClient

hosts, tls = json.loads(sys.argv[1])
for host in hosts:
    client = EtcdClient([f"{host}:2379"], Security(*tls) if tls else None, timeout=60.0)
    found = client.read(b"/written/", b"/written0", keys_only=True)
    print(json.dumps([int(pair.key.rpartition(b"/")[2]) for pair in found.values]))
"""

WHOLE = """
import json, ssl, sys, time, urllib.request

hosts, tls = json.loads(sys.argv[1])
scheme, context = "https" if tls else "http", None
if tls:
    context = ssl.create_default_context(cafile=tls[0])
    context.load_cert_chain(*tls[1:])


def voters(host):
    try:
        with urllib.request.urlopen(f"{scheme}://{host}:2380/members", timeout=2, context=context) as answer:
            members = json.load(answer)
    except (OSError, ValueError):
        return []
    return sorted(it["peerURLs"][0] for it in members if it.get("clientURLs") and not it.get("isLearner"))


while any(voters(host) != [f"{scheme}://{host}:2380" for host in hosts] for host in hosts):
    time.sleep(0.5)
"""


class World:
    """Three machines with an agent each, and one with the writer."""

    def __init__(self, machines, folder, tls):
        self.machines, self.folder, self.tls = machines, folder, tls
        self.agents = {}
        self.acknowledged = folder / "acknowledged"
        self.history = []

    def launch(self, at, script, argument, **streams):
        command = [*self.machines[at].through, sys.executable, "-c", script, json.dumps(argument)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, **streams)

    def start(self, at, tls=None):
        data = self.folder / f"data{at}"
        data.mkdir(exist_ok=True)
        with open(self.folder / f"agent{at}.log", "ab") as log:
            argument = (ADDRESSES[at], str(data), ADDRESSES, tls or self.tls)
            self.agents[at] = self.launch(at, AGENT, argument, stdout=log, stderr=log)

    def member(self, at):
        """The etcd process on a machine, or None."""
        for pid in self.machines[at].pids():
            with contextlib.suppress(psutil.Error):
                if psutil.Process(pid).name() == "etcd":
                    return psutil.Process(pid)
        return None

    def asked(self, script, argument):
        done = self.launch(3, script, argument, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        out, _ = done.communicate(timeout=LONG)
        return [json.loads(line) for line in out.decode().splitlines()] if done.returncode == 0 else []

    def heals(self):
        """Wait until each of the three members lists all three as voters."""
        begun = time.monotonic()
        waiting = self.launch(3, WHOLE, (ADDRESSES, self.tls))
        try:
            waiting.wait(LONG)
        except subprocess.TimeoutExpired:
            waiting.kill()
            raise AssertionError(f"no three votes, after {self.history}:\n{self.logs()}") from None
        assert waiting.returncode == 0
        self.history.append(f"whole after {time.monotonic() - begun:.1f} s")

    def logs(self):
        return "\n".join(f"{at}: {(self.folder / f'agent{at}.log').read_text()[-1500:]}" for at in range(3))

    # Faults. Each returns a function that ends it.

    def loses_its_disk(self, at):
        self.machines[at].off()
        self.agents[at].wait()

        def ends():
            self.machines[at].mend()
            self.start(at)

        return ends

    def restarts(self, at):
        self.agents[at].send_signal(signal.SIGTERM)
        self.agents[at].wait(LONG)
        return lambda: self.start(at)

    def etcd_is_killed(self, at):
        if member := self.member(at):
            with contextlib.suppress(psutil.Error):
                member.kill()
        return lambda: None

    def trusts_nobody(self, at):
        """The agent restarts with certificates from another authority."""
        ends = self.loses_its_disk(at)
        if not self.tls:
            return ends
        self.machines[at].mend()
        self.start(at, self.strange)

        def mends():
            self.agents[at].kill()
            self.agents[at].wait()
            eventually(lambda: self.member(at) is None, "the end of its member")
            self.start(at)

        return mends

    def hangs(self, at):
        member = self.member(at)
        if member is None:
            return lambda: None
        member.suspend()

        def ends():
            with contextlib.suppress(psutil.Error):
                member.resume()

        return ends

    def is_cut_off(self, at):
        self.machines[at].cut()
        return self.machines[at].mend

    def is_slow(self, at):
        self.machines[at].shape(*["tbf", "rate", "256kbit", "burst", "4kb", "latency", "2s"])
        return self.machines[at].shape

    def is_not_heard(self, at):
        """Its packets to one other machine are lost."""
        one, other = self.machines[at], self.machines[(at + 1) % 3]
        one.loses(other)
        return lambda: one.finds(other)


LOSSES = ("loses_its_disk", "restarts", "etcd_is_killed", "trusts_nobody")
SILENCES = ("hangs", "is_cut_off", "is_slow", "is_not_heard")


@pytest.fixture
def folder():
    """A folder in memory; at the end it is removed with all data of machines that are off."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
def world(request, folder):
    over_tls = request.param % 4 == 3
    tls = strange = None
    if over_tls:
        tls, strange = (certificates(folder / name) for name in ("own", "strange"))
    machines = Machines(4)
    made = World(machines, folder, tls)
    made.strange = strange
    try:
        yield made
    finally:
        machines.close()
        for agent in made.agents.values():
            agent.wait()


def certificates(folder):
    folder.mkdir()
    made = make_certificates(folder, *ADDRESSES, "10.97.0.4")  # etcd wants a client's address in its certificate, too
    return made.ca, made.cert, made.key


@pytest.mark.parametrize(("world", "seed"), [(seed, seed) for seed in range(SCHEDULES)], indirect=["world"])
def test_acknowledged_writes_survive_random_faults(world, seed):
    """Only one machine lacks its data at a time, while another one may hang or be unreachable."""
    chance = random.Random(seed)
    for at in chance.sample(range(3), 3):
        world.start(at)
    world.heals()
    with open(world.acknowledged, "wb") as out:
        writer = world.launch(3, WRITER, (ADDRESSES, world.tls), stdout=out)
    eventually(lambda: len(world.acknowledged.read_bytes().splitlines()) > 20, "the first writes")
    for _ in range(3):
        lost, silent = chance.sample(range(3), 2)
        faults = [(chance.choice(LOSSES), lost), (chance.choice(SILENCES), silent)]
        ends = []
        for name, at in chance.sample(faults, chance.choice((1, 2, 2))):
            world.history.append(f"{at} {name}")
            ends.append(getattr(world, name)(at))
            time.sleep(chance.uniform(0, 4))
        chance.shuffle(ends)
        for end in ends:
            end()
            time.sleep(chance.uniform(0, 4))
        world.heals()
    writer.kill()
    writer.wait()
    lines = [tuple(map(int, line.split())) for line in world.acknowledged.read_text().splitlines()[1:-1]]
    revisions = [revision for _, revision in lines]
    assert revisions == sorted(set(revisions)), f"a revision went back: {world.history}"
    held = world.asked(READER, (ADDRESSES, world.tls))
    assert len(held) == 3, world.history
    for keys in held:
        missing_ones = {number for number, _ in lines} - set(keys)
        assert not missing_ones, f"{len(missing_ones)} of {len(lines)} acknowledged writes are lost: {world.history}"
    assert held[0] == held[1] == held[2]
    print(f"seed {seed}: {len(lines)} writes; {'; '.join(world.history)}")

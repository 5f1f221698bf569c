"""Decisions of an agent from the member lists of a served cluster, without processes and sockets."""

from __future__ import annotations

import subprocess
from random import Random

import pytest
from elastic_etcd.backend.create import served_cluster
from elastic_etcd.parameters import read_parameters
from elastic_etcd.server.cluster import (
    Answer,
    Begin,
    Cluster,
    Join,
    Leave,
    Member,
    Place,
    Wait,
    decide,
    leaving,
    majority_lost,
    members_of,
    shown,
)

from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.handler import RendezvousParameters

PLACES = tuple(Place(f"n{number}", 2379, 2380) for number in range(5))
CLUSTER = Cluster("job", PLACES[:3])


def member(number, serves=True, learner=False, cluster=CLUSTER):
    name = "" if learner and not serves else cluster.name(PLACES[number])
    return Member(f"id{number}", name, PLACES[number].peer_url, serves, learner)


def answers(number, *members, healthy=True):
    return Answer(PLACES[number], False, members, healthy)


def refuses(number):
    """A machine that is up, without a listening etcd."""
    return Answer(PLACES[number], refused=True)


def silent(number):
    return Answer(PLACES[number])


def decided(*answers, cluster=CLUSTER):
    return decide(cluster, PLACES[0], answers)


ALL = tuple(map(member, range(3)))
BEGINNING = tuple(member(number, serves=False) for number in range(3))


def test_cluster_starts_only_if_all_other_hosts_refuse():
    assert decided(refuses(1), refuses(2)) == Begin()
    assert decided(answers(1, *BEGINNING, healthy=False), refuses(2)) == Begin()
    assert decide(Cluster("job", PLACES[:1]), PLACES[0], ()) == Begin()


@pytest.mark.parametrize("other", [refuses(1), answers(1, *BEGINNING, healthy=False), silent(1)])
def test_cluster_does_not_start_while_a_host_is_silent(other):
    """The silent host may be slow, cut off or paused, and may hold acknowledged writes."""
    found = decided(other, silent(2))
    assert isinstance(found, Wait)
    assert "n2:2379" in found.reason


def test_lost_member_is_replaced():
    assert decided(answers(1, *ALL), answers(2, *ALL)) == Join(PLACES[1], "id0")
    assert decided(answers(1, *ALL), silent(2)) == Join(PLACES[1], "id0")
    assert decided(answers(1, *ALL, healthy=False), answers(2, *ALL)) == Join(PLACES[2], "id0")


def test_departed_member_is_added_again():
    assert decided(silent(1), answers(2, *ALL[1:])) == Join(PLACES[2], "")


def test_added_member_that_never_served_is_replaced():
    """The member may have been started and have lost acknowledged data."""
    assert decided(answers(1, member(0, False, True), *ALL[1:])) == Join(PLACES[1], "id0")
    assert decided(answers(1, BEGINNING[0], *ALL[1:])) == Join(PLACES[1], "id0")


def test_without_majority_member_waits_and_names_missing_hosts():
    found = decided(answers(1, *ALL, healthy=False), refuses(2))
    assert isinstance(found, Wait)
    assert "1 of 3 members answer, and 2 are needed; bring back 1 of n0:2379, n2:2379" in found.reason


def test_cluster_with_hosts_outside_the_endpoint_is_not_joined():
    found = decided(answers(1, *ALL[:2], member(3)), refuses(2))
    assert isinstance(found, Wait)
    assert "http://n3:2380" in found.reason


def test_order_of_hosts_does_not_change_the_cluster():
    assert Cluster("job", PLACES[2::-1]).initial == CLUSTER.initial


class World:
    """Three hosts, and the part of etcd that decides whether writes are lost: the voters, and the writes that each
    holds. The cluster identifies a voter by its id, whatever it holds."""

    def __init__(self, random, deciding):
        self.random, self.deciding = random, deciding
        self.running = [None] * 3  # the id of the host's member
        self.hung = [False] * 3
        self.holds = {}  # by id
        self.voters = None  # the host of each id
        self.learners = {}
        self.served = False
        self.plans = {}
        self.acknowledged = self.fresh = 0
        self.whole = False  # all three have been up, with all data, since the last loss

    def live(self):
        return [it for it, at in (self.voters or {}).items() if self.running[at] == it and not self.hung[at]]

    def serves(self):
        """Whether a majority is up; it elects the member with the most writes."""
        live = self.live()
        if self.voters is None or len(live) <= len(self.voters) // 2:
            return False
        newest = max(self.holds[it] for it in live)
        assert newest == self.acknowledged, f"{self.acknowledged - newest} acknowledged writes are lost"
        self.served = True
        for it in (*live, *(it for it, at in self.learners.items() if self.running[at] == it and not self.hung[at])):
            self.holds[it] = newest
        self.whole = self.whole or len(live) == 3
        return True

    def answer(self, at):
        if self.running[at] is None and not self.hung[at]:
            return refuses(at) if self.random.random() < 0.8 else silent(at)
        if self.hung[at] or self.random.random() < 0.3:  # late, wrong or missing
            return silent(at)
        known = {**(self.voters or {}), **self.learners}
        members = tuple(
            Member(it, CLUSTER.name(PLACES[where]), PLACES[where].peer_url, self.served, it in self.learners)
            for it, where in known.items()
        )
        return Answer(PLACES[at], False, members, self.serves() and self.random.random() < 0.9)

    def look(self, at):
        if self.running[at] is None:
            others = [self.answer(other) for other in range(3) if other != at]
            self.plans[at] = self.deciding(CLUSTER, PLACES[at], others)

    def act(self, at):
        """Carry out the decision, some time after the look."""
        plan = self.plans.pop(at, None)
        if self.running[at] is not None or plan is None or isinstance(plan, Wait):
            return
        if isinstance(plan, Begin):
            self.voters = self.voters or {f"first{n}": n for n in range(3)}
            self.running[at] = f"first{at}"
            self.holds[f"first{at}"] = 0
        elif self.serves() and PLACES.index(plan.through) in [self.voters[it] for it in self.live()]:
            self.voters.pop(plan.removed, None)
            self.learners.pop(plan.removed, None)
            self.fresh += 1
            self.learners[f"new{self.fresh}"] = at
            self.running[at] = f"new{self.fresh}"
            self.holds[f"new{self.fresh}"] = 0

    def promote(self, at):
        it = self.running[at]
        if it in self.learners and self.serves() and not self.hung[at]:
            self.voters[it] = self.learners.pop(it)

    def write(self, at):
        if self.serves():
            self.acknowledged += 1
            for it in self.live():
                self.holds[it] = self.acknowledged

    def lose(self, at):
        """The agent ends, with its member and all data. Only one machine lacks data at a time; others may hang."""
        if self.whole:
            self.running[at], self.hung[at], self.whole = None, False, False
            self.plans.pop(at, None)

    def hang(self, at):
        self.hung[at] = self.running[at] is not None

    def resume(self, at):
        self.hung[at] = False


def explored(deciding, schedules=8000, steps=80):
    """The number of random schedules after which the cluster serves; each schedule ends with all hosts healthy."""
    served = 0
    for seed in range(schedules):
        random = Random(seed)
        world = World(random, deciding)
        for _ in range(steps):
            acts = (world.look, world.act, world.promote, world.write, world.lose, world.hang, world.resume)
            act = random.choices(acts, weights=(4, 4, 1, 4, 1, 3, 3))[0]
            act(random.randrange(3))
        for _ in range(20):
            for at in range(3):
                for act in (world.resume, world.look, world.act, world.promote):
                    act(at)
        served += world.serves() and not world.learners and len(world.voters) == 3
    return served


def test_no_acknowledged_write_is_lost_in_random_schedules():
    assert explored(decide) == 8000


def test_etcd_of_another_job_is_not_joined():
    other = Cluster("another", PLACES[:3])
    found = decided(refuses(1), answers(2, *(member(number, cluster=other) for number in range(3))))
    assert isinstance(found, Wait)
    assert "the etcd at n2:2379 is not part of this job" in found.reason


def test_leaving_member_removes_only_itself():
    assert leaving(CLUSTER, PLACES[0], (answers(1, *ALL), answers(2, *ALL))) == Leave(PLACES[1], "id0", "id1")
    assert leaving(CLUSTER, PLACES[0], (refuses(1), answers(2, *ALL))) == Leave(PLACES[2], "id0", "id2")
    assert leaving(CLUSTER, PLACES[0], (answers(1, *ALL), silent(2))) == Leave(PLACES[1], "id0", "id1")


def test_last_member_does_not_leave():
    assert leaving(CLUSTER, PLACES[0], (refuses(1), refuses(2))) is False
    assert leaving(CLUSTER, PLACES[0], (answers(1, *ALL, healthy=False),)) is False
    assert leaving(CLUSTER, PLACES[0], (answers(1, ALL[0], member(1, learner=True)),)) is False


def test_agent_does_not_leave_another_cluster_at_its_address():
    """It may have waited for its ports the whole time."""
    others = [member(number, cluster=Cluster("another", PLACES[:3])) for number in range(3)]
    assert leaving(CLUSTER, PLACES[0], (answers(1, *others), answers(2, *others))) is True
    mixed = (answers(1, *others), answers(2, *ALL))
    for order in (mixed, mixed[::-1]):
        assert leaving(CLUSTER, PLACES[0], order) == Leave(PLACES[2], "id0", "id2")
    by_hand = [it._replace(name=f"prod{it.id}") for it in ALL]
    assert leaving(CLUSTER, PLACES[0], (answers(1, *by_hand), answers(2, *by_hand))) is True


def test_unlisted_member_has_left():
    assert leaving(CLUSTER, PLACES[0], (answers(1, *ALL[1:]),)) is True


def test_majority_counts_current_members_only():
    assert majority_lost(CLUSTER, (answers(0, *ALL), answers(1, *ALL))) == ""
    assert majority_lost(CLUSTER, (answers(0, ALL[0]),)) == ""  # the other members have left
    assert "0 of 3 members answer, and 2 are needed; bring back 2 of n0:2379, n1:2379, n2:2379" in majority_lost(
        CLUSTER, ()
    )
    assert "bring back 1 of n1:2379, n2:2379" in majority_lost(CLUSTER, (answers(0, *ALL, healthy=False), refuses(1)))


def test_token_and_member_names_depend_on_the_job():
    assert CLUSTER.token != Cluster("another", PLACES).token
    assert CLUSTER.initial == ",".join(f"{CLUSTER.token}-n{number}:2379=http://n{number}:2380" for number in range(3))
    after = (ALL[1], ALL[2], member(0, False, True))
    initial = CLUSTER.initial_with(PLACES[0], after)
    assert sorted(initial.split(",")) == sorted(CLUSTER.initial.split(","))


def test_member_lists_of_both_ports_are_parsed():
    """From the client port, and from the peer port."""
    found = [
        {"ID": "1", "name": "a", "peerURLs": ["http://n0:2380"], "clientURLs": ["http://n0:2379"]},
        {"id": 2, "peerURLs": ["http://n1:2380"], "isLearner": True},
    ]
    assert members_of(found) == (
        Member("1", "a", "http://n0:2380", True, False),
        Member("2", "", "http://n1:2380", False, True),
    )


@pytest.mark.parametrize(
    ("endpoint", "options", "words"),
    [
        ("a,b", {}, "expected an odd number of hosts"),
        ("a,b,c", {"serve": "3"}, "expected true or false"),
        ("a:1,a:2,a:3", {}, "two servers would listen at a:2, a:3"),
        ("a,b,c", {"serve_peer_port": 2379}, "two servers would listen at a:2379"),
        ("a:65535,b,c", {}, "a:65536, or the port does not exist"),
        ("a,b,c", {"user": "u", "password": "p", "insecure_password": True}, "has no user accounts"),
        ("https://a,https://b,https://c", {}, "ca_cert, ssl_cert and ssl_cert_key"),
    ],
)
def test_unservable_configuration_is_refused(endpoint, options, words):
    params = RendezvousParameters("etcd", endpoint, "job", 1, 3, **{"serve": True, **options})
    with pytest.raises(ConfigurationError, match=words):
        served_cluster(params, read_parameters(params.endpoint, params.config))


@pytest.mark.integration
def test_encrypted_key_of_a_served_cluster_is_refused_without_a_prompt(certificates, tmp_path):
    locked = tmp_path / "locked.pem"
    seal = ["openssl", "pkey", "-in", certificates.key, "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(seal, check=True)
    files = {"ca_cert": certificates.ca, "ssl_cert": certificates.cert, "ssl_cert_key": str(locked)}
    params = RendezvousParameters("etcd", "https://a", "job", 1, 1, serve=True, **files)
    with pytest.raises(ConfigurationError, match="the key is encrypted"):
        served_cluster(params, read_parameters(params.endpoint, params.config))


def test_status_shows_the_role_of_each_member():
    away = (answers(0, *ALL), answers(1, *ALL), refuses(2))
    assert shown(CLUSTER, away, "id1") == ("n0:2379 follows", "n1:2379 leads", "n2:2379 does not answer")
    learner = (ALL[0], member(2, False, True))
    some = (answers(0, *learner), answers(2, *learner, healthy=False))
    assert shown(CLUSTER, some, "id0") == ("n0:2379 leads", "n1:2379 is not a member", "n2:2379 is a learner")
    assert shown(CLUSTER, (), "") == tuple(f"n{number}:2379 does not answer" for number in range(3))

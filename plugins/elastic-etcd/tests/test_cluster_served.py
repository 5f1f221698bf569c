"""What follows from what the members of a served cluster tell; no process, no socket."""

from __future__ import annotations

import pytest
from elastic_etcd.backend.create import parameters_of, served_cluster
from elastic_etcd.server.cluster import (
    Answer,
    Begin,
    Cluster,
    Join,
    Member,
    Place,
    Spare,
    Wait,
    decide,
    heard_of,
    in_touch,
    leaving,
    majority_lost,
    members_of,
    reaches_leader,
    shown,
)

from elastic_core.errors import ConfigurationError
from elastic_core.interfaces.handler import RendezvousParameters

PLACES = tuple(Place(f"n{number}", 2379, 2380) for number in range(5))
CLUSTER = Cluster("job", PLACES[:3])
FIVE = Cluster("job", PLACES)
SPARED = Cluster("job", PLACES, spares=2)


def member(number, serves=True, learner=False, cluster=CLUSTER):
    name = cluster.name(PLACES[number]) if serves else ""
    return Member(f"id{number}", name, PLACES[number].peer_url, serves, learner)


def told(number, *members, healthy=True):
    return Answer(PLACES[number], True, True, members, healthy)


def refuses(number):
    """A machine that is there, and nobody listens."""
    return Answer(PLACES[number])


def decided(*answers, cluster=CLUSTER, failed=False, crowded=False):
    return decide(cluster, PLACES[0], answers, failed, crowded)


ALL = tuple(map(member, range(3)))


def test_where_no_cluster_is_one_begins():
    assert decided(refuses(1), refuses(2)) == Begin()
    assert decided(refuses(1)) == Begin()
    assert decide(Cluster("job", PLACES[:1]), PLACES[0], (), False, False) == Begin()


def test_who_reaches_no_majority_of_the_machines_begins_nothing():
    """The cluster may be where the network is not: it must not get a member of before that is empty."""
    found = decided()
    assert isinstance(found, Wait)
    assert "n1:2379, n2:2379" in found.reason
    assert isinstance(decided(refuses(1), cluster=FIVE), Wait)
    assert decided(refuses(1), refuses(2), cluster=FIVE) == Begin()


def test_one_that_was_there_is_replaced():
    assert decided(told(1, *ALL), told(2, *ALL)) == Join(PLACES[1], ("id0",))
    assert decided(told(1, *ALL, healthy=False), told(2, *ALL)) == Join(PLACES[2], ("id0",))


def test_one_that_has_left_is_added():
    assert decided(told(2, *ALL[1:])) == Join(PLACES[2], ())


def test_one_that_was_added_and_has_not_served_is_added_anew():
    """It may have been started, and have lost what it was told."""
    assert decided(told(1, member(0, False, True), *ALL[1:])) == Join(PLACES[1], ("id0",))


def test_one_of_the_first_that_comes_late_begins_as_the_others_did():
    late = Member("id0", CLUSTER.name(PLACES[0]), PLACES[0].peer_url, False, False)
    assert decided(told(1, late, *ALL[1:])) == Begin()
    assert decided(told(1, late, *ALL[1:], healthy=False)) == Begin()  # it may be the one that is missing
    assert decided(told(1, late, *ALL[1:]), failed=True) == Join(PLACES[1], ("id0",))


def test_without_a_majority_it_waits_and_says_what_remains_to_do():
    found = decided(told(1, *ALL, healthy=False), refuses(2))
    assert isinstance(found, Wait)
    assert "1 of 3 members answer, 2 must; bring back 1 of n0:2379, n2:2379" in found.reason


def test_those_that_are_away_are_removed_only_when_etcd_adds_no_member_for_them():
    members = tuple(member(number, cluster=FIVE) for number in range(5))
    answers = (*(told(number, *members) for number in (1, 2, 3)), refuses(4))
    assert decided(*answers, cluster=FIVE) == Join(PLACES[1], ("id0",))
    assert decided(*answers, cluster=FIVE, crowded=True) == Join(PLACES[1], ("id0", "id4"))


def test_a_learner_that_is_there_is_not_away():
    members = (*(member(number, cluster=FIVE) for number in range(1, 4)), member(4, False, True))
    answers = (*(told(number, *members) for number in (1, 2, 3)), Answer(PLACES[4], True, True))
    assert decided(*answers, cluster=FIVE, crowded=True) == Join(PLACES[1], ())


def at(number, *answers, crowded=False, live=()):
    return decide(SPARED, PLACES[number], answers, False, crowded, frozenset(live))


def test_a_spare_begins_nothing_and_takes_nobodys_place_while_the_members_are_there():
    assert at(3, *map(refuses, (0, 1, 2, 4))) == at(3, refuses(0)) == Spare(vacant=False)
    assert at(3, *(told(number, *ALL) for number in range(3)), crowded=True) == Spare(vacant=False)
    assert isinstance(at(3, told(0, *ALL, healthy=False), refuses(1), crowded=True), Wait)


def test_a_spare_takes_the_place_of_a_member_that_is_away_for_some_time():
    lost = (told(0, *ALL), told(2, *ALL), refuses(4))
    assert at(3, *lost) == Spare(vacant=True)
    assert at(3, *lost, crowded=True) == Join(PLACES[0], ("id1",))
    left = (told(0, ALL[0], ALL[2]), told(2, ALL[0], ALL[2]), refuses(1))
    assert at(3, *left) == Spare(vacant=True)
    assert at(3, *left, crowded=True) == Join(PLACES[0], ())


def test_a_spare_that_does_not_reach_a_member_takes_no_place_while_others_do():
    cut_off = (told(0, *ALL), told(2, *ALL), refuses(4))
    assert at(3, *cut_off, crowded=True, live={"id0", "id1", "id2"}) == Spare(vacant=False)
    assert at(3, *cut_off, crowded=True, live={"id0", "id2"}) == Join(PLACES[0], ("id1",))


def test_whom_others_have_heard_from_in_between():
    metrics = b"""# TYPE etcd_network_peer_received_bytes_total counter
etcd_network_peer_received_bytes_total{From="1f"} 4711
etcd_network_peer_received_bytes_total{From="20"} 1.048576e+06
etcd_network_peer_sent_bytes_total{To="21"} 4711
"""
    assert heard_of(metrics) == {"31": 4711.0, "32": 1048576.0}
    assert heard_of(b"\xff{}\n" + b"9" * 1000) == {}
    before = {("n0", "31"): 4711.0, ("n0", "32"): 9.0, ("n2", "32"): 1.0}
    assert in_touch(before, {**before, ("n2", "32"): 2.0, ("n2", "33"): 1.0}) == {"32", "33"}


def test_who_does_not_reach_the_leader_cannot_tell_who_lives():
    assert reaches_leader("id0", (told(0, *ALL), refuses(1)))
    assert not reaches_leader("id1", (told(0, *ALL), refuses(1)))
    assert not reaches_leader("", (told(0, *ALL),))


def test_one_whose_place_was_taken_is_a_spare_from_then_on():
    taken = (ALL[0], ALL[2], member(3, cluster=SPARED))
    assert at(1, told(0, *taken), told(2, *taken), told(3, *taken)) == Spare(vacant=False)
    assert at(1, told(0, *taken), told(2, *taken), refuses(3), crowded=True) == Join(PLACES[0], ("id3",))
    assert at(1, told(0, ALL[0], ALL[2]), told(2, ALL[0], ALL[2])) == Join(PLACES[0], ())  # nobody has taken it yet
    assert at(1, told(0, *ALL), told(2, *ALL)) == Join(PLACES[0], ("id1",))


def test_the_first_of_them_begin_and_not_where_a_cluster_may_be_out_of_reach():
    assert SPARED.initial == CLUSTER.initial
    assert at(0, refuses(1), refuses(2), refuses(4)) == Begin()
    found = at(0, refuses(1), refuses(2))
    assert isinstance(found, Wait)
    assert "n3:2379, n4:2379" in found.reason


def test_the_etcd_of_another_job_is_left_alone():
    other = Cluster("another", PLACES[:3])
    found = decided(refuses(1), told(2, *(member(number, cluster=other) for number in range(3))))
    assert isinstance(found, Wait)
    assert "n2:2379 is an etcd that is not of this job" in found.reason


def test_leaving_takes_those_along_that_are_away():
    assert leaving(PLACES[0], (told(1, *ALL), told(2, *ALL))) == (PLACES[1], ("id0",), "id1")
    assert leaving(PLACES[0], (refuses(1), told(2, *ALL))) == (PLACES[2], ("id1", "id0"), "id2")


def test_one_that_hangs_is_not_taken_out_by_others():
    hangs = Answer(PLACES[2], True)
    assert leaving(PLACES[0], (told(1, *ALL), hangs)) == (PLACES[1], ("id0",), "id1")
    assert decided(told(1, *ALL), hangs, crowded=True) == Join(PLACES[1], ("id0",))
    assert shown(CLUSTER, (told(1, *ALL), hangs), "id1")[2] == "n2:2379 does not answer"


def test_the_last_member_does_not_leave():
    assert leaving(PLACES[0], (refuses(1), refuses(2))) is None
    assert leaving(PLACES[0], (told(1, *ALL, healthy=False),)) is None
    assert leaving(PLACES[0], (told(1, ALL[0], member(1, learner=True)),)) is None


def test_a_majority_is_of_the_members_that_there_are():
    assert majority_lost(CLUSTER, (told(0, *ALL), told(1, *ALL))) == ""
    assert majority_lost(CLUSTER, (told(0, ALL[0]),)) == ""  # the others have left
    assert "0 of 3 members answer, 2 must; bring back 2 of n0:2379, n1:2379, n2:2379" in majority_lost(CLUSTER, ())
    assert "bring back 1 of n1:2379, n2:2379" in majority_lost(CLUSTER, (told(0, *ALL, healthy=False), refuses(1)))


def test_names_and_token_are_of_the_job():
    assert CLUSTER.token != Cluster("another", PLACES).token
    assert CLUSTER.initial == ",".join(f"{CLUSTER.token}-n{number}:2379=http://n{number}:2380" for number in range(3))
    after = (ALL[1], ALL[2], member(0, False, True))
    told = CLUSTER.initial_with(PLACES[0], after)
    assert sorted(told.split(",")) == sorted(CLUSTER.initial.split(","))


def test_what_etcd_tells_is_read():
    answer = {
        "members": [
            {"ID": "1", "name": "a", "peerURLs": ["http://n0:2380"], "clientURLs": ["http://n0:2379"]},
            {"ID": "2", "peerURLs": ["http://n1:2380"], "isLearner": True},
        ]
    }
    assert members_of(answer) == (
        Member("1", "a", "http://n0:2380", True, False),
        Member("2", "", "http://n1:2380", False, True),
    )


@pytest.mark.parametrize(
    ("endpoint", "options", "said"),
    [
        ("a,b", {}, "expected 1, 3 or 5 hosts"),
        ("a,b,c,d", {"serve": 2}, "expected 1, 3 or 5 members, found 2"),
        ("a,b,c", {"serve": "1"}, "expected 3 or 5 members, or one host, found 1 member on 3 hosts"),
        ("a", {"serve": "3"}, "expected 3 hosts in the endpoint or more, found 1"),
        ("a", {"serve": "yes!"}, "expected true, false, or a whole number from 1 to 9"),
        ("a,b,c", {"user": "u", "password": "p", "insecure_password": True}, "expected no user"),
        ("https://a,https://b,https://c", {}, "ca_cert, ssl_cert and ssl_cert_key"),
    ],
)
def test_what_cannot_be_served_is_told(endpoint, options, said):
    params = RendezvousParameters("etcd", endpoint, "job", 1, 3, **{"serve": True, **options})
    with pytest.raises(ConfigurationError, match=said):
        served_cluster(params, parameters_of(params))


def test_how_each_member_stands():
    away = (told(0, *ALL), told(1, *ALL), refuses(2))
    assert shown(CLUSTER, away, "id1") == ("n0:2379 follows", "n1:2379 leads", "n2:2379 does not answer")
    learner = (ALL[0], member(2, False, True))
    some = (told(0, *learner), Answer(PLACES[2], True, True))
    assert shown(CLUSTER, some, "id0") == ("n0:2379 leads", "n1:2379 is not a member now", "n2:2379 has no vote yet")
    taken = (ALL[0], ALL[2], member(3, cluster=SPARED))
    some = tuple(told(number, *taken) for number in (0, 2, 3))
    stands = ("leads", "is a spare", "follows", "follows", "is a spare")
    assert shown(SPARED, some, "id0") == tuple(f"n{number}:2379 {it}" for number, it in enumerate(stands))
    assert shown(CLUSTER, (), "") == tuple(f"n{number}:2379 does not answer" for number in range(3))

"""Handlers that assign ranks by a policy."""

from __future__ import annotations

import pytest
from elastic_testing import Background, MemoryBackend, SharedMemory

from elastic_core import log
from elastic_core.builtin import MemoryStore
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous import DynamicRendezvousHandler

pytestmark = pytest.mark.integration

HOSTS = ("node9", "node10", "node3")


def backwards(candidates):
    return list(reversed(candidates))


def raising(candidates):
    raise ValueError("no idea")


@pytest.fixture
def hosts_of_a_round():
    """Function that forms a round of three nodes under a policy and returns their hosts in rank order."""
    handlers = []

    def hosts_of_a_round(policy):
        memory = SharedMemory()
        for host in HOSTS:
            node = Node(f"{host}:1", host, labels={"rack": host})
            backend = MemoryBackend(memory)
            handler = DynamicRendezvousHandler.from_backend("job", MemoryStore(), backend, 3, 3, node=node)
            if policy is not None:
                handler.rank_by(policy)
            handlers.append(handler)
        joins = [Background(handler.next_rendezvous) for handler in handlers]
        infos = [join.result() for join in joins]
        (members,) = {tuple(info.formed.members) for info in infos}
        assert [members[info.rank].host for info in infos] == list(HOSTS)
        return [member.host for member in members]

    yield hosts_of_a_round
    for handler in handlers:
        handler.shutdown()


def test_nodes_without_policy_are_ordered_by_host(hosts_of_a_round):
    assert hosts_of_a_round(None) == ["node3", "node9", "node10"]


@pytest.mark.parametrize("policy", [backwards, reversed])
def test_policy_decides_the_ranks(policy, hosts_of_a_round):
    """It may return a list or an iterator."""
    assert hosts_of_a_round(policy) == ["node10", "node9", "node3"]


def test_policy_sees_labels_and_last_ranks(hosts_of_a_round):
    seen = []

    def policy(candidates):
        seen.extend((it.node.labels["rack"], it.last_rank) for it in candidates)
        return candidates

    hosts_of_a_round(policy)
    assert seen == [("node3", None), ("node9", None), ("node10", None)]


def leaving(candidates):
    raise SystemExit(3)


def taking(candidates):
    candidates.pop()
    return candidates


@pytest.mark.parametrize(
    "policy",
    [raising, leaving, taking, lambda candidates: candidates[1:], lambda candidates: candidates * 2, lambda _: None],
)
def test_failed_policy_is_logged_and_ranks_stay(policy, hosts_of_a_round, capsys):
    log.configure("human", "warning")
    assert hosts_of_a_round(policy) == ["node3", "node9", "node10"]
    logged = capsys.readouterr().err
    assert 'plugin failed: part="rank policy"' in logged
    assert logged.count("the nodes keep their ranks") == 1

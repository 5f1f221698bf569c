"""Nodes whose clocks are an hour apart form a round and notice a leaving node: no code compares clocks."""

import time

import pytest
from elastic_etcd import EtcdRendezvousBackend
from elastic_etcd.client.client import EtcdClient

from elastic_core.builtin import MemoryStore
from elastic_core.clock import Clock, Instant
from elastic_core.interfaces.handler import Outcome
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous import DynamicRendezvousHandler, PrefixedStores, RendezvousSettings, RendezvousTimeout

LONG = 60.0
LEASE = 8.0  # seconds; a machine that stalls this long loses nodes whatever their clocks show


class ShiftedClock(Clock):
    """A clock that is wrong by `shift` seconds."""

    def __init__(self, shift):
        self._shift = shift

    def now(self):
        return Instant(time.monotonic() + self._shift)


@pytest.fixture
def handler(etcd, prefix):
    """Makes nodes of a job with two to three nodes."""
    made = []

    def make(job, name, shift):
        clock = ShiftedClock(shift)
        backend = EtcdRendezvousBackend(
            EtcdClient([etcd.endpoint], clock=clock), job, prefix.decode(), lease_ttl=LEASE, clock=clock
        )
        settings = RendezvousSettings(job, 2, 3, RendezvousTimeout(join=30.0, last_call=25.0), 0.4, 10)
        stores = PrefixedStores(MemoryStore(), job, "127.0.0.1")
        made.append(DynamicRendezvousHandler(backend, settings, Node(name, name), stores, clock=clock))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def test_nodes_with_clocks_an_hour_apart_form_a_round(handler, background, eventually):
    nodes = [handler("job", name, shift) for name, shift in (("a", 0.0), ("b", 3600.0), ("c", -3600.0))]
    joins = [background(node.next_rendezvous) for node in nodes]
    assert sorted(join.result(40).rank for join in joins) == [0, 1, 2]
    time.sleep(2.0)  # if clocks were compared, the nodes would be lost immediately
    assert [node.verdict() for node in nodes] == [None, None, None]
    assert nodes[1].leave("it goes", LONG)
    for node in (nodes[0], nodes[2]):
        verdict = eventually(node.verdict, LONG)
        assert verdict.outcome is Outcome.RESTART

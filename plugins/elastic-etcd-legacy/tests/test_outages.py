"""Rounds, and nodes that are joining, while etcd does not answer."""

from __future__ import annotations

import time

import pytest
from cluster import User, make_certificates
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.errors import EtcdUnreachable
from elastic_etcd_legacy import create_rdzv_handler
from nodes import job_at

from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.handler import RendezvousParameters


def formed(background, nodes):
    joining = [background(node.next_rendezvous) for node in nodes]
    return sorted(call.result().rank for call in joining)


def waiting(node):
    """The number of waiting nodes, or None if etcd is unreachable."""
    try:
        return node.num_nodes_waiting()
    except RendezvousConnectionError:
        return None


def in_reach(node):
    return waiting(node) == 0


def test_round_survives_an_etcd_restart(servers, background, eventually, run_id):
    """Members get an error during the outage, and keep the round afterwards."""
    server = servers.single()
    with job_at([server.endpoint], run_id, 2, 2) as job:
        nodes = [job.node() for _ in range(2)]
        assert formed(background, nodes) == [0, 1]
        server.kill()

        eventually(lambda: not in_reach(nodes[0]))
        server.start()
        server.wait_healthy()
        eventually(lambda: all(in_reach(node) for node in nodes))


def test_etcd_that_lost_its_data_ends_the_round(servers, background, eventually, run_id):
    server = servers.single()
    with job_at([server.endpoint], run_id, 2, 2) as job:
        nodes = [job.node() for _ in range(2)]
        assert formed(background, nodes) == [0, 1]
        server.lose_data()
        server.start()
        server.wait_healthy()
        eventually(lambda: all(waiting(node) == 1 for node in nodes))
        assert formed(background, nodes) == [0, 1]
        eventually(lambda: all(in_reach(node) for node in nodes))


def test_join_continues_after_an_etcd_restart(servers, background, eventually, run_id):
    server = servers.single()
    with job_at([server.endpoint], run_id, 2, 2) as job:
        first = background(job.node().next_rendezvous)
        client = job.client()
        eventually(lambda: client.read(job.settings.keys.document).first)
        client.close()
        server.kill()
        second = background(job.node().next_rendezvous)
        server.start()
        assert {first.result().rank, second.result().rank} == {0, 1}


class AnswerLosingClient(EtcdClient):
    """A client whose writes all succeed, but every second answer is lost."""

    lost = 0

    def transact(self, transaction):
        done = super().transact(transaction)
        self.lost += 1
        if self.lost % 2:
            raise EtcdUnreachable("the answer was lost", landed=True)
        return done


def test_writes_with_lost_answers_are_recognized(etcd, background, eventually, run_id):
    with job_at([etcd.endpoint], run_id, 3, 3) as job:
        job.client_class = AnswerLosingClient
        job.patience = 60.0
        nodes = [job.node() for _ in range(3)]
        assert formed(background, nodes) == [0, 1, 2]
        again = [background(nodes[0].next_rendezvous)]
        eventually(lambda: nodes[1].num_nodes_waiting() == 1)
        again += [background(node.next_rendezvous) for node in nodes[1:]]
        assert sorted(call.result().rank for call in again) == [0, 1, 2]
        nodes[0].set_closed()
        assert all(node.is_closed() for node in nodes)


def test_refusal_is_raised_immediately(servers, tmp_path, run_id):
    """Here for a user without permission on the prefix, over TLS; an exhausted quota is no different."""
    certificates = make_certificates(tmp_path)
    server = servers.single(users=(User("somebody", "password", b"/elsewhere/"),), certificates=certificates)
    options = {"user": "somebody", "password": "password", "protocol": "https", "cacert": certificates.ca}
    params = RendezvousParameters("etcd-legacy", server.endpoint, run_id, 1, 1, timeout=60, **options)
    with pytest.warns(DeprecationWarning):
        handler = create_rdzv_handler(params)
    begun = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="permission"):
        handler.next_rendezvous()
    assert time.monotonic() - begun < 30.0
    handler.shutdown()

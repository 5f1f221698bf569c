"""The contract of rendezvous backends, over a real etcd."""

import pytest
from cluster import LONG
from elastic_etcd import create
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.values import Put, Transaction
from elastic_etcd.keys import Keys
from two_clients import TwoClients

from elastic_core.testing import BackendContract, installed_backend

_CLIENT_FOR = create.client_for


class TestEtcd(BackendContract):
    lease = 60.0
    at_once = 25.0  # what is to be told apart from it takes 30

    @pytest.fixture
    def backend(self, request, prefix, monkeypatch):
        """The tests that take the server away have one of their own, and clients that give up soon when it is."""
        name = request.node.originalname
        gone = name.startswith("test_a_store_that_is_gone")
        self.clients = []
        if gone:
            monkeypatch.setattr(create, "client_for", self._client_for)
        # A slow machine is not a silent node; where a lease is to end, it must outlive the look at its entry.
        self.lease_ttl = 6.0 if name.startswith("test_without_beats") else 60.0
        self.member = request.getfixturevalue("servers").single() if gone else request.getfixturevalue("etcd")
        self.prefix = prefix.decode()
        backend = self.peer(None)
        yield backend
        backend.close()

    def peer(self, backend, run_id="job"):
        options = {"prefix": self.prefix, "lease_ttl": self.lease_ttl, "keep_alive_interval": 0.5}
        return installed_backend("etcd", self.member.endpoint, run_id, **options)

    def other_job(self, backend):
        return self.peer(backend, "job/nodes")

    def lose(self, backend):
        self.member.kill()
        for client in self.clients:
            client.away = True

    def spoil(self, backend):
        client = EtcdClient([self.member.endpoint], timeout=LONG)
        client.transact(Transaction([], [Put(Keys(self.prefix, "job").state, b"foreign")]))
        client.close()

    def _client_for(self, parameters, longest=LONG, node=""):
        self.clients.append(TwoClients(_CLIENT_FOR(parameters, longest, node), _CLIENT_FOR(parameters, 0.5, node)))
        return self.clients[-1]

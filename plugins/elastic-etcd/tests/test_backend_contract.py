"""The contract of rendezvous backends, over a real etcd."""

import pytest
from cluster import LONG
from elastic_etcd.backend.keys import Keys
from elastic_etcd.client.client import EtcdClient
from elastic_etcd.client.values import Put, Transaction
from elastic_testing import BackendContract, installed_backend

pytestmark = pytest.mark.integration


class TestEtcd(BackendContract):
    lease = 60.0
    at_once = 25.0  # the slow alternatives take 30

    @pytest.fixture
    def backend(self, request, prefix):
        """Tests that stop the server have their own, and clients that give up sooner."""
        name = request.node.originalname
        restored = name in ("test_entries_are_restored_after_data_loss", "test_old_token_is_invalid_after_data_loss")
        gone = restored or name.endswith("report_lost_store")
        self.timeout = 4.0 if gone else LONG
        # Long leases tolerate a slow machine; a lease that must end still has to outlive the check of its entry. A node
        # notices its withdrawal only when it renews its lease.
        ends = restored or name == "test_lease_drops_entry_of_dead_node"
        self.lease_ttl = 6.0 if ends else 30.0
        self.member = request.getfixturevalue("servers").single() if gone else request.getfixturevalue("etcd")
        self.prefix = prefix.decode()
        backend = self.peer(None)
        yield backend
        backend.close()

    def peer(self, backend, run_id="job"):
        options = {"prefix": self.prefix, "read_timeout": self.timeout, "lease_ttl": self.lease_ttl}
        return installed_backend("etcd", self.member.endpoint, run_id, **options, keep_alive_interval=0.5)

    def other_job(self, backend):
        return self.peer(backend, "job/nodes")

    def lose(self, backend):
        self.member.kill()

    def forget(self, backend):
        self.member.lose_data()
        self.member.start()
        self.member.wait_healthy()

    def spoil(self, backend):
        client = EtcdClient([self.member.endpoint], timeout=LONG)
        client.transact(Transaction([], [Put(Keys(self.prefix, "job").state, b"foreign")]))
        client.close()

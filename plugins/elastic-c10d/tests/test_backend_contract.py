"""The contract of rendezvous backends, over torch's stores."""

from __future__ import annotations

import pytest
from elastic_c10d import StoreServer
from elastic_c10d.create import create_parts
from elastic_c10d.endpoint import Endpoint
from elastic_c10d.torch_store import distributed
from elastic_testing import BackendContract, rendezvous_parameters

from elastic_core.rendezvous.versions import Keys


class TestTCPStore(BackendContract):
    """The backend of the handler; the one that `elastic status` opens never hosts or initializes a store."""

    @pytest.fixture
    def backend(self):
        self.server = StoreServer(Endpoint("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self.server.start()}"
        backend = self.peer(None)
        yield backend
        backend.close()
        self.server.stop()

    def peer(self, backend, run_id="job"):
        # The first wait on a lost store takes all of `connect_timeout`, and the contract allows little more.
        options = {"is_host": False, "connect_timeout": 6.0, "read_timeout": 20.0}
        return create_parts(rendezvous_parameters("c10d", self.endpoint, run_id, **options))[0]

    def other_job(self, backend):
        return self.peer(backend, "other")

    def lose(self, backend):
        self.server.stop()

    def forget(self, backend):
        self.server.stop()
        self.server = StoreServer(Endpoint("127.0.0.1", int(self.endpoint.rpartition(":")[2])))
        self.server.start()


class TestFileStore(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        self.path = str(tmp_path / "store")
        backend = self.peer(None)
        yield backend
        backend.close()

    def peer(self, backend, run_id="job"):
        return create_parts(rendezvous_parameters("c10d", self.path, run_id, store_type="file"))[0]

    def other_job(self, backend):
        return self.peer(backend, "other")

    def spoil(self, backend):
        backend.get_state()
        store = distributed().FileStore(self.path, -1)
        store.set(Keys("job", store.get(Keys("job").id).decode()).state(1), "hello")

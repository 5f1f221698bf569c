"""The round store passes StoreContract. BackendContract does not apply, because this handler has no
`RendezvousBackend`."""

from __future__ import annotations

from datetime import timedelta

import pytest
from elastic_testing import StoreContract, rendezvous_parameters

from elastic_core.rendezvous import get_rendezvous_handler

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class TestRoundStore(StoreContract):
    @pytest.fixture
    def store(self, etcd, run_id, background):
        params = rendezvous_parameters("etcd-legacy", etcd.endpoint, run_id, 2, 2)
        nodes = [get_rendezvous_handler(params) for _ in range(2)]
        joining = [background(node.next_rendezvous) for node in nodes]
        stores = [call.result().store for call in joining]
        for made in stores:
            made.set_timeout(timedelta(seconds=20))
        store, self.other = stores
        yield store
        for node in nodes:
            node.shutdown()

    def peer(self, store):
        return self.other

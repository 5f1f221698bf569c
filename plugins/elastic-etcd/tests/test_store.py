"""EtcdStore over a real etcd."""

from __future__ import annotations

import pytest
from elastic_etcd.client.client import EtcdClient

from elastic_core.testing import StoreContract

pytestmark = pytest.mark.torch


@pytest.fixture
def client(etcd):
    made = EtcdClient([etcd.endpoint])
    yield made
    made.close()


@pytest.fixture
def stores(client, prefix):
    """Makes clients of one store."""
    from elastic_etcd.store import EtcdStore

    made = []

    def make(over=client, **options):
        made.append(EtcdStore(over, prefix.decode(), **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


class TestEtcdStore(StoreContract):
    @pytest.fixture
    def store(self, stores):
        self.stores = stores
        return stores()

    def peer(self, store):
        return self.stores()


class TestUnderPrefixStore(StoreContract):
    @pytest.fixture
    def store(self, stores):
        from torch.distributed import PrefixStore

        return PrefixStore("outer", PrefixStore("inner", stores()))

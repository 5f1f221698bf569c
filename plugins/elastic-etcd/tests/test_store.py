"""EtcdStore over a real etcd."""

from __future__ import annotations

import contextlib

import pytest
from elastic_etcd.client.errors import EtcdError
from elastic_testing import StoreContract, installed_store

pytestmark = pytest.mark.torch


@pytest.fixture
def stores(etcd, prefix):
    """Makes clients of one store."""
    with contextlib.ExitStack() as stack:

        def make():
            made = installed_store("etcd", endpoint=etcd.endpoint, prefix=prefix.decode(), timeout=20)
            stack.callback(made.close)
            return made

        yield make


class TestKeyStore(StoreContract):
    """The store without torch."""

    errors = (EtcdError,)

    @pytest.fixture
    def store(self, etcd, prefix, connect):
        from elastic_etcd.store.store import KeyStore

        self.make = lambda: KeyStore(connect(etcd.endpoint), prefix.decode())
        return self.make()

    def peer(self, store):
        return self.make()


class TestEtcdStore(StoreContract):
    @pytest.fixture
    def store(self, stores):
        self.stores = stores
        return stores()

    def peer(self, store):
        return self.stores()


class TestUnderPrefixStore(StoreContract):
    @pytest.fixture
    def store(self, dist, stores):
        return dist.PrefixStore("outer", dist.PrefixStore("inner", stores()))


def test_close_of_store_made_by_name_closes_its_client(dist, stores):
    store = stores()
    store.set("key", "value")
    store.close()
    with pytest.raises(dist.DistStoreError, match="is closed"):
        store.set("key", "another")

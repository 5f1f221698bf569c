"""The contract of stores holds for torch's own: it says what they do, not what we wish."""

from __future__ import annotations

from datetime import timedelta

import pytest
from elastic_c10d.torch_import import distributed

from elastic_core.testing import StoreContract


class TestTCPStore(StoreContract):
    @pytest.fixture
    def store(self, client):
        return client()

    def peer(self, store):
        return distributed().TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False)


class TestHashStore(StoreContract):
    @pytest.fixture
    def store(self):
        return distributed().HashStore()


class TestFileStore(StoreContract):
    tells_deletion = False

    @pytest.fixture
    def store(self, tmp_path):
        store = distributed().FileStore(str(tmp_path / "store"), -1)
        store.set_timeout(timedelta(seconds=20))
        return store


class TestPrefixStore(StoreContract):
    @pytest.fixture
    def store(self, client):
        self.client = client
        return distributed().PrefixStore("outer", client())

    def peer(self, store):
        return distributed().PrefixStore("outer", self.client())  # one connection waits or asks, never both

"""The contract of stores, run on torch's own stores, which it describes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from elastic_c10d.torch_store import distributed
from elastic_testing import StoreContract, installed_store

from elastic_core.support.sockets import PortReservation


class TestTCPStore(StoreContract):
    @pytest.fixture
    def store(self):
        held = PortReservation()
        yield installed_store("tcp", port=held.port, is_host=True, timeout=20)
        held.release()

    def peer(self, store):
        return installed_store("tcp", port=store.port, is_host=False, timeout=20)


class TestHashStore(StoreContract):
    add_wakes = False  # torch 2.13: a waiter finds the key only at its timeout

    @pytest.fixture
    def store(self):
        return installed_store("hash")


class TestFileStore(StoreContract):
    tells_deletion = False

    @pytest.fixture
    def store(self, tmp_path):
        self.path = tmp_path / "store"
        return self.peer(None)

    def peer(self, store):
        made = installed_store("file", path=str(self.path))
        made.set_timeout(timedelta(seconds=20))
        return made


class TestPrefixStore(StoreContract):
    @pytest.fixture
    def store(self, client):
        self.client = client
        return distributed().PrefixStore("outer", client())

    def peer(self, store):
        return distributed().PrefixStore("outer", self.client())  # one connection cannot wait and read at the same time

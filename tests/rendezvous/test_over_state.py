"""A store on top of a backend of two methods fulfills the contract of stores."""

from __future__ import annotations

from datetime import timedelta

import pytest
from elastic_testing import MemoryBackend, SharedMemory, StoreContract

from elastic_core.errors import RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous import StateStore


class TestStateStore(StoreContract):
    extended = False

    @pytest.fixture
    def store(self):
        self.memory = SharedMemory()
        return StateStore(MemoryBackend(self.memory))

    def peer(self, store):
        return StateStore(MemoryBackend(self.memory))


class Silent(MemoryBackend):
    def set_state(self, state, token=None):
        super().set_state(state, token)


def test_backend_without_write_result_is_read_back():
    store = StateStore(Silent(SharedMemory()))
    assert [store.add("n", 1), store.add("n", 1)] == [1, 2]
    assert store.compare_set("k", "", "v") == b"v"


@pytest.mark.parametrize(
    "found", [b"", b"hello", b"[]", b'{"version":2,"values":{}}', b'{"version":1,"values":{"k":1}}']
)
def test_foreign_state_is_an_error(found):
    backend = MemoryBackend(SharedMemory(state=(found, 1)))
    with pytest.raises(RendezvousStateError, match="no other program uses the same endpoint"):
        StateStore(backend).get("k")


def test_outage_raises_connection_error():
    backend = MemoryBackend(SharedMemory())
    backend.reachable = False
    store = StateStore(backend)
    for call in (lambda: store.get("k"), lambda: store.set("k", "v"), lambda: store.add("k", 1), store.num_keys):
        with pytest.raises(RendezvousConnectionError):
            call()


def test_timeout_names_the_missing_key():
    store = StateStore(MemoryBackend(SharedMemory()), timeout=timedelta(milliseconds=30))
    with pytest.raises(TimeoutError, match=r"\['k'\] were not set within 0.03 s"):
        store.get("k")

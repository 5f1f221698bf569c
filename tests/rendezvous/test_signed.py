"""Backends with signed states and entries fulfill the contract, and hide everything that third parties write."""

from __future__ import annotations

import pytest
from elastic_testing import BackendContract, MemoryBackend, SharedMemory
from store_place import KEYS, Place, shown

from elastic_core.clock import SystemClock
from elastic_core.interfaces.backend import ForeignStateError
from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.store_backend import with_roster

pytestmark = pytest.mark.integration

SECRET, OTHER = b"a secret of the job", b"another secret, also"


def signed(backend, *secrets, run_id="job"):
    return with_roster(backend, SystemClock(), seal=HmacSeal(run_id, secrets))


class TestSigned(BackendContract):
    """A backend that keeps entries but does not sign them itself."""

    @pytest.fixture
    def backend(self):
        self.memory = SharedMemory()
        return self.peer(None)

    def peer(self, backend):
        return signed(MemoryBackend(self.memory), SECRET)

    def forget(self, backend):
        self.memory.forget()

    def spoil(self, backend):
        self.memory.state = (b"hello", 1)


class TestSignedOverAStore(BackendContract):
    @pytest.fixture
    def backend(self):
        self.place = Place().begin()
        yield self.peer(None)
        self.place.close()

    def peer(self, backend, run_id="job"):
        return signed(self.place.backend(run_id), SECRET, run_id=run_id)

    def other_job(self, backend):
        return self.peer(backend, "other")

    def spoil(self, backend):
        self.place.store.set(KEYS.state(1), b"stranger" + b":" + b'{"version":3}')


@pytest.fixture(params=[TestSigned, TestSignedOverAStore], ids=["entries", "store"])
def makers(request, place):
    """Function that creates clients of one job, each with or without a secret."""
    memory = SharedMemory()
    client = place.backend if request.param is TestSignedOverAStore else lambda: MemoryBackend(memory)
    return lambda *secrets: signed(client(), *secrets)


def test_foreign_entries_are_ignored(makers):
    ours, third_party, others = makers(SECRET), makers(), makers(OTHER)
    ours.announce("a/1", b"entry")
    third_party.announce("b/1", b"entry")
    others.announce("c/1", b"entry")
    assert [item.key for item in ours.roster()] == ["a/1"]
    assert [item.key for item in others.roster()] == ["c/1"]


def test_foreign_state_can_be_replaced(makers):
    ours, third_party = makers(SECRET), makers()
    _, token, _ = ours.set_state(b"1")
    assert third_party.set_state(b"2", token)[2]
    with pytest.raises(ForeignStateError) as caught:
        ours.get_state()
    assert ours.set_state(b"3", caught.value.token)[2]
    assert makers(SECRET).get_state()[0] == b"3"


def test_connected_store_signs_from_then_on(place):
    backend = place.backend()
    backend.connect()
    _, token, _ = signed(backend, SECRET).set_state(b"1")
    assert signed(place.backend(), SECRET).get_state() == (b"1", token)
    assert place.backend().get_state()[0].startswith(b"signed ")


def test_foreign_withdrawal_and_copied_record_are_ignored(place, capsys):
    node, leader = (signed(place.backend(), SECRET) for _ in range(2))
    node.announce("a/1", b"1")
    node.announce("a/1", b"2")
    stranger = place.backend()
    stranger.roster()
    stranger.withdraw("a/1")
    place.store.set(KEYS.slot(place.store.add(KEYS.slots, 1)), place.store.get(KEYS.slot(1)))
    place.store.set(KEYS.slot(place.store.add(KEYS.slots, 1)), b"1 a/1")
    assert shown(leader) == [("a/1", b"2")]
    assert capsys.readouterr().err.count("not signed: ") == 2

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from elastic_core.builtin import MemoryStore
from elastic_core.rendezvous import RendezvousStoreInfo


@pytest.fixture
def store():
    return MemoryStore(timedelta(seconds=60))


def test_rank_0_publishes_and_other_ranks_read(store):
    info = RendezvousStoreInfo.build(0, store, "10.0.0.1", 1234)
    assert info == RendezvousStoreInfo("10.0.0.1", 1234)
    assert RendezvousStoreInfo.build(1, store) == info
    assert RendezvousStoreInfo.build(2, store, "10.0.0.2", 99) == info
    assert (store.get("MASTER_ADDR"), store.get("MASTER_PORT")) == (b"10.0.0.1", b"1234")
    assert RendezvousStoreInfo.build(0, store, "host", 0).master_port == 0


def test_wait_is_bounded_by_the_store():
    with pytest.raises(TimeoutError):
        RendezvousStoreInfo.build(1, MemoryStore(timedelta(seconds=0.01)))


def can_be_bound(port):
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.integration
def test_defaults_are_free_port_and_host_name():
    infos = [RendezvousStoreInfo.build(0, MemoryStore()) for _ in range(5)]
    assert {info.master_addr for info in infos} == {socket.getfqdn()}
    assert all(info.master_port for info in infos)
    assert any(can_be_bound(info.master_port) for info in infos)  # several, because a free port is not reserved

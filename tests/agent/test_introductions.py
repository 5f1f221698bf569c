"""Introductions through a store in memory, with each node in its own thread; and malformed ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from elastic_core.agent.link import exchange_introductions
from elastic_core.builtin import MemoryStore
from elastic_core.errors import RendezvousConnectionError, RendezvousStateError, RendezvousTimeoutError
from elastic_core.interfaces.node import Member, Round

NODES = [
    Round(1, (Member("", "", "", "trainer", 2),), 0),
    Round(2, (Member("node7", "host7", "", "reader", 1),), 3),
    Round(7, (Member("", "", "", "trainer", 4),), 1),
]


def test_all_nodes_agree_on_the_round():
    store = MemoryStore(timedelta(seconds=30))
    with ThreadPoolExecutor(3) as pool:
        rounds = list(pool.map(lambda rank: exchange_introductions(store, rank, 3, NODES[rank]), range(3)))
    members = tuple(own.members[0] for own in NODES)
    assert rounds == [Round(7, members, 3)] * 3


class Untouchable:
    def __getattr__(self, name):
        raise AssertionError(f"a single node must not use the store: {name}")


def test_single_node_uses_no_store():
    assert exchange_introductions(Untouchable(), 0, 1, NODES[1]) == NODES[1]


def test_silent_node_times_out_naming_its_rank():
    with pytest.raises(RendezvousTimeoutError, match="the node with rank 1 did not introduce itself"):
        exchange_introductions(MemoryStore(timedelta(seconds=0.01)), 0, 2, NODES[0])


class Gone(MemoryStore):
    def get(self, key):
        raise RuntimeError("connection closed by peer")


def test_broken_store_raises_connection_error():
    with pytest.raises(RendezvousConnectionError, match="connection closed by peer"):
        exchange_introductions(Gone(), 0, 2, NODES[0])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\x04\x95",  # a pickle
        b"\xff",
        b"17",
        b"{}",
        b"[]",
        b'["trainer", 2]',
        b'["trainer", 2, 0, 1]',
        b'["trainer", "2", 0, 1, "a", "h"]',
        b'["trainer", true, 0, 1, "a", "h"]',
        b'["trainer", -2, 0, 1, "a", "h"]',
        b'[7, 2, 0, 1, "a", "h"]',
        b'["trainer", 2, 0, 1, 5]',
        b'["trainer", 2, 0, 1, "a", 5]',
        b'["trainer", 2, 0, 1, "a", "h", 5]',
        b"[" * 100_000,
    ],
)
def test_malformed_introduction_raises_state_error(raw):
    store = MemoryStore()
    store.set("elastic/member/1", raw)
    with pytest.raises(RendezvousStateError, match="expected the introduction of the node with rank 1"):
        exchange_introductions(store, 0, 2, NODES[0])

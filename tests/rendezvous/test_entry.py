from __future__ import annotations

from elastic_core.interfaces.node import Member, Node
from elastic_core.rendezvous.model import NO_ROUND, Entry


def test_entry_describes_the_node():
    node = Node("n7", "host7", "trainer", 8, rank_hint=2, max_restarts=3, labels={"rack": "b"})
    entry = Entry.of(node, "n7/1")
    assert (entry.key, entry.node, entry.host, entry.role) == ("n7/1", "n7", "host7", "trainer")
    assert (entry.local_world_size, entry.rank_hint, entry.max_restarts) == (8, 2, 3)
    assert entry.labels == {"rack": "b"}
    assert (entry.after, entry.waits, entry.done) == (NO_ROUND, True, NO_ROUND)
    assert (entry.address, entry.port) == ("", 0)


def test_entry_copies_labels():
    labels = {"rack": "b"}
    entry = Entry.of(Node("n7", labels=labels), "n7/1")
    labels["rack"] = "c"
    assert entry.labels == {"rack": "b"}


def test_seat_describes_the_member(build):
    entry = build.entry("n7/1", node="n7", host="h", address="10.0.0.7", port=4, local_world_size=8)
    assert entry.seat.member == Member("n7", "h", "10.0.0.7", "default", 8)

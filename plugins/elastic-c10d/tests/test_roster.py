"""Announcements, heartbeats, and gaps in the roster's log."""

from __future__ import annotations

from elastic_c10d import C10dRendezvousBackend
from elastic_c10d.connection import as_connector

from elastic_core.rendezvous.roster_log import values_of
from elastic_core.rendezvous.store_connection import ThreadConnection
from elastic_core.rendezvous.versions import Keys

KEYS = Keys("job")


def shown(backend):
    return [(seen.key, seen.entry) for seen in backend.roster()]


def test_reannounced_entry_returns_to_its_place(backends):
    one, two = backends(), backends()
    one.announce("a", b"1")
    two.announce("b", b"2")
    two.roster()
    two.withdraw("a")
    assert shown(one) == [("b", b"2")]
    one.announce("a", b"3")
    assert shown(two) == [("a", b"3"), ("b", b"2")]


def test_roster_lists_more_entries_than_one_read_returns(client):
    backend = C10dRendezvousBackend(client(), "job")
    for number in range(1100):
        backend.announce(f"node{number}", b"x")
    assert len(C10dRendezvousBackend(client(), "job").roster()) == 1100


def test_read_of_a_deleted_key_does_not_block_for_minutes(client, background):
    """The key may be deleted after the check that it exists. The given store's own timeout stays as it is."""
    store = client()
    before = store.timeout
    line = ThreadConnection(as_connector(store), aside=False, on_connect=lambda store: None)
    found = background(lambda: line.use("reading", lambda store: values_of(store, ["deleted"])))
    assert found.result(60) is None
    line.close()
    assert store.timeout == before

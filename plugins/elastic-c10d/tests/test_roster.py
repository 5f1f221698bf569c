"""Announcements, heartbeats, and gaps in the roster's log."""

from __future__ import annotations

import threading

import pytest
from elastic_c10d import C10dRendezvousBackend
from elastic_c10d.connection import as_connector

from elastic_core.interfaces.backend import EntryDroppedError
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


def test_three_hundred_concurrent_announcements_are_all_listed(client):
    def announce(numbers):
        backend = C10dRendezvousBackend(client(), "job")
        for number in numbers:
            backend.announce(f"node{number}", str(number).encode())
        backend.close()

    watcher = C10dRendezvousBackend(client(), "job")
    threads = [threading.Thread(target=announce, args=(range(i, 300, 20),), daemon=True) for i in range(20)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(watcher.roster()) <= 300
    assert {seen.key for seen in watcher.roster()} == {f"node{number}" for number in range(300)}
    assert shown(watcher) == shown(C10dRendezvousBackend(client(), "job"))


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


def test_heartbeat_reveals_a_withdrawn_entry(backends):
    one, two = backends(), backends()
    one.announce("a", b"1")
    two.announce("b", b"2")
    two.roster()
    one.beat("a", leading=False, look=False)
    two.withdraw("a")
    with pytest.raises(EntryDroppedError):
        one.beat("a", leading=False, look=False)
    one.announce("a", b"3")
    one.beat("a", leading=False, look=False)
    assert shown(two) == [("b", b"2"), ("a", b"3")]

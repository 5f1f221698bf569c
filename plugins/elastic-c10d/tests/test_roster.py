"""The backend over a given store of each kind."""

from __future__ import annotations

from elastic_c10d.connection import as_connector

from elastic_core.rendezvous.roster_log import values_of
from elastic_core.rendezvous.store_connection import ThreadConnection


def shown(backend):
    return [(seen.key, seen.entry) for seen in backend.roster()]


def test_nodes_share_entries_and_the_state(backends):
    one, two = backends(), backends()
    one.announce("a", b"1")
    two.announce("b", b"2")
    two.roster()
    two.withdraw("a")
    assert shown(one) == [("b", b"2")]
    one.announce("a", b"3")
    assert shown(two) == [("a", b"3"), ("b", b"2")]  # at its former place
    _, token, _ = one.set_state(b"1")
    for other in (token._replace(number=9), token._replace(epoch="before")):
        assert two.set_state(b"2", other) == (b"1", token, False)
    assert two.wait_for_state(token._replace(epoch="before"), 20)


def test_read_of_a_deleted_key_does_not_block_for_minutes(client, background):
    """The key may be deleted after the check that it exists. The given store's own timeout stays as it is."""
    store = client()
    before = store.timeout
    line = ThreadConnection(as_connector(store), aside=False, on_connect=lambda store: None)
    found = background(lambda: line.use("reading", lambda store: values_of(store, ["deleted"])))
    assert found.result(60) is None
    line.close()
    assert store.timeout == before

"""Versions of the state: writers and readers that slept, and hints that lag."""

from __future__ import annotations

import pytest
from store_place import KEYS, Place

from elastic_core.rendezvous.seal import HmacSeal
from elastic_core.rendezvous.versions import KEPT, EpochEnded, Version, Versions


@pytest.fixture
def store():
    return Place().store


@pytest.fixture
def client():
    """Function that creates the reader and writer of one node."""
    return lambda: Versions(KEYS, HmacSeal("job"))


def write(versions, store, count, after=0):
    for number in range(after, after + count):
        assert versions.write(store, b"%d" % (number + 1), number)[2]


@pytest.mark.parametrize("slept", [1, KEPT - 1, KEPT, KEPT + 1, 5 * KEPT])
def test_outdated_client_reads_the_newest_version_and_never_writes(store, client, slept):
    writer, reader, others = client(), client(), client()
    write(writer, store, 1)
    assert reader.newest(store)[1].number == 1
    write(others, store, slept, after=1)
    newest = (b"%d" % (slept + 1), Version(KEYS.epoch, slept + 1))
    assert writer.write(store, b"late", 1) == (*newest, False)
    assert reader.newest(store) == client().newest(store) == newest


def test_newcomer_reads_past_a_lagging_hint(store, client):
    write(client(), store, 10)
    store.set(KEYS.head, "3")  # seven writers died before they updated the hint
    assert client().newest(store) == (b"10", Version(KEYS.epoch, 10))


def test_writer_continues_from_a_lagging_hint(store, client):
    write(client(), store, 10)
    store.set(KEYS.head, "3")
    assert client().write(store, b"11", 10)[2]
    assert store.get(KEYS.head) == b"11"


@pytest.mark.parametrize("instead", [None, b"another:x"], ids=["gap", "another version"])
def test_no_version_is_written_after_one_that_was_lost(store, client, instead):
    """Nodes that wait for the lost version would not see it, and others would follow it in an epoch that has ended."""
    writer = client()
    write(writer, store, 3)
    store.delete_key(KEYS.state(3))  # the store has returned with older data
    store.set(KEYS.head, "2")
    if instead is not None:
        store.set(KEYS.state(3), instead)
        store.set(KEYS.head, "3")
    with pytest.raises(EpochEnded):
        writer.write(store, b"4", 3)
    assert not store.check([KEYS.state(4)])


def test_observer_shows_the_version_that_replaced_another_one(store, client):
    observer = Versions(KEYS, HmacSeal("job"), observes=True)
    write(client(), store, 2)
    assert observer.newest(store)[0] == b"2"
    store.delete_key(KEYS.state(2))  # the store has returned with older data
    store.set(KEYS.head, "1")
    assert client().write(store, b"other", 1)[2]
    assert observer.newest(store)[0] == b"other"


def test_next_writer_deletes_what_dead_writers_left(store, client):
    write(client(), store, KEPT)
    for number in range(KEPT + 1, KEPT + 4):  # three writers that died before they could delete versions
        store.compare_set(KEYS.state(number), "", b"%08d:x" % number)
    write(client(), store, 1, after=KEPT + 3)
    assert not any(store.check([KEYS.state(number)]) for number in range(1, 5))
    assert store.num_keys() == KEPT + 1


@pytest.mark.parametrize("between", ["check", "compare_set"])
def test_newcomer_copes_with_concurrent_deletion(client, between):
    """After it has read the head, and before it reads that version, many more are written."""
    place, reader, writer = Place(), client(), client()
    write(writer, place.store, 5)
    key = [KEYS.state(5)] if between == "check" else KEYS.state(5)
    place.before(between, key, lambda: write(writer, place.store, 2 * KEPT, after=5))
    assert reader.newest(place.client()) == (b"%d" % (5 + 2 * KEPT), Version(KEYS.epoch, 5 + 2 * KEPT))


def test_reader_copes_with_concurrent_write(client):
    """It finds no next version, and one is written before it reads the head."""
    place, reader, writer = Place(), client(), client()
    write(writer, place.store, 5)
    reader.newest(place.store)
    place.before("compare_set", KEYS.head, lambda: write(writer, place.store, 1, after=5))
    assert reader.newest(place.client()) == (b"6", Version(KEYS.epoch, 6))


def test_state_stays_readable_when_its_secret_is_replaced(store):
    old, new = b"o" * 32, b"n" * 32
    write(Versions(KEYS, HmacSeal("job", [old])), store, 1)
    seal = HmacSeal("job", [old], reread=lambda: [new])
    reader = Versions(KEYS, seal)
    state = reader.newest(store)
    assert seal.opened("entry", HmacSeal("job", [new]).sealed("entry", b"x")) == b"x"  # which reads the secrets again
    assert reader.newest(store) == state

"""Announcements, beats, holes in the log, and what is left of them."""

from __future__ import annotations

import threading

import pytest
from elastic_c10d import C10dRendezvousBackend

from elastic_core.interfaces.backend import EntryDroppedError
from elastic_core.rendezvous.versions import Keys

KEYS = Keys("job")


def shown(backend):
    return [(seen.key, seen.entry) for seen in backend.roster()]


def test_entries_come_in_the_order_of_their_first_announcement(backends):
    first, second = backends(), backends()
    assert first.announce("a", b"1") == 0
    assert second.announce("b/with spaces", b"\x00 2 ") == 1
    assert first.announce("a", b"3") == 0
    assert shown(second) == shown(first) == [("a", b"3"), ("b/with spaces", b"\x00 2 ")]


def test_an_empty_entry_is_one(backends):
    backend = backends()
    backend.announce("a", b"")
    assert shown(backend) == [("a", b"")]


def test_who_withdraws_is_gone_for_those_who_saw_it_and_for_newcomers(backends):
    one, two, watcher = backends(), backends(), backends()
    one.announce("a", b"1")
    two.announce("b", b"2")
    watcher.roster()
    one.withdraw("a")
    one.withdraw("never announced")
    assert shown(watcher) == shown(backends()) == [("b", b"2")]
    assert one.announce("a", b"again") > 0
    assert shown(watcher) == [("b", b"2"), ("a", b"again")]


def test_an_entry_can_be_withdrawn_by_another_node_and_comes_back_to_its_place(backends):
    one, two = backends(), backends()
    one.announce("a", b"1")
    two.announce("b", b"2")
    two.roster()
    two.withdraw("a")
    assert shown(one) == [("b", b"2")]
    one.announce("a", b"3")
    assert shown(two) == [("a", b"3"), ("b", b"2")]


def test_beats_are_counted_for_each_and_for_leaders(backends):
    one, two = backends(), backends()
    one.announce("a", b"")
    two.announce("b", b"")
    before = {seen.key: seen.beats for seen in one.roster()}
    assert one.beat("a", leading=False, look=False) is None
    assert one.beat("a", leading=False, look=True) == 0
    assert one.beat("a", leading=True, look=False) == 1
    assert two.beat("b", leading=False, look=True) == 1
    after = {seen.key: seen.beats for seen in two.roster()}
    assert after["a"] - before["a"] == 3
    assert after["b"] - before["b"] == 1


def test_waiting_ends_when_somebody_comes_changes_or_goes(backends, background):
    node, watcher = backends(), backends()
    for act in (lambda: node.announce("a", b"1"), lambda: node.announce("a", b"2"), lambda: node.withdraw("a")):
        watcher.roster()
        assert not watcher.wait_for_roster(0.02)
        waiting = background(lambda: watcher.wait_for_roster(20))
        act()
        assert waiting.result() is True


def test_three_hundred_nodes_announce_at_once(client):
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


def test_more_entries_than_fit_into_one_reading(client):
    backend = C10dRendezvousBackend(client(), "job")
    for number in range(1100):
        backend.announce(f"node{number}", b"x")
    assert len(C10dRendezvousBackend(client(), "job").roster()) == 1100


def test_a_node_learns_with_its_next_beat_that_another_has_withdrawn_it(backends):
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

"""Announcements, beats, holes in the log, and what is left of them."""

from __future__ import annotations

import threading

import pytest
from elastic_c10d import C10dRendezvousBackend
from elastic_c10d.keys import Keys

from elastic_core.errors import RendezvousStateError
from elastic_core.testing import FakeClock

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


def test_a_joiner_that_died_between_its_two_writes_holds_up_nobody_for_long(client):
    clock, store = FakeClock(), client()
    watcher = C10dRendezvousBackend(client(), "job", clock)
    dead = store.add(KEYS.slots, 1)
    node = C10dRendezvousBackend(client(), "job")
    node.announce("a", b"1")
    assert shown(watcher) == []
    assert watcher.wait_for_roster(0.02) is False
    clock.advance(1.9)
    assert shown(watcher) == []
    clock.advance(0.2)
    assert shown(watcher) == [("a", b"1")]
    assert store.get(KEYS.slot(dead)) == b"-"
    assert shown(C10dRendezvousBackend(client(), "job")) == [("a", b"1")]


def test_several_holes_are_given_up_together(client):
    clock, store = FakeClock(), client()
    watcher = C10dRendezvousBackend(client(), "job", clock)
    for _ in range(5):
        store.add(KEYS.slots, 1)
    C10dRendezvousBackend(client(), "job").announce("a", b"1")
    watcher.roster()
    clock.advance(2.1)
    assert shown(watcher) == [("a", b"1")]


def test_a_joiner_that_was_merely_slow_takes_another_slot(client):
    store = client()
    clock = FakeClock()
    watcher = C10dRendezvousBackend(client(), "job", clock)
    slow = C10dRendezvousBackend(SlowStore(client(), lambda: void(watcher, clock)), "job")
    slow.announce("a", b"1")
    assert store.get(KEYS.slot(1)) == b"-"
    assert shown(watcher) == [("a", b"1")]
    slow.announce("a", b"2")
    assert shown(watcher) == shown(C10dRendezvousBackend(client(), "job")) == [("a", b"2")]


def void(watcher, clock):
    watcher.roster()
    clock.advance(3)
    watcher.roster()


class SlowStore:
    """Lets something happen just before the first announcement is written."""

    def __init__(self, store, meanwhile):
        self._store = store
        self._meanwhile = meanwhile

    def __getattr__(self, name):
        if name == "underlying_store":
            raise AttributeError(name)
        return getattr(self._store, name)

    def compare_set(self, key, expected, desired):
        if key == KEYS.slot(1) and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return self._store.compare_set(key, expected, desired)


def test_a_hole_is_looked_after_even_if_nothing_else_happens(client):
    watcher = C10dRendezvousBackend(client(), "job", FakeClock(), hole_patience=0.05)
    client().add(KEYS.slots, 1)
    watcher.roster()
    assert watcher.wait_for_roster(20) is True


def test_dead_slots_at_the_front_are_deleted_but_never_void_ones(client):
    clock, store = FakeClock(), client()
    watcher = C10dRendezvousBackend(client(), "job", clock)
    void_slot = store.add(KEYS.slots, 1)
    watcher.roster()
    clock.advance(3)
    node = C10dRendezvousBackend(client(), "job")
    for number in range(30):
        node.announce("a", str(number).encode())
    watcher.roster()
    assert store.get(KEYS.slot(void_slot)) == b"-"
    assert not any(store.check([KEYS.slot(number)]) for number in range(2, 31))
    assert shown(C10dRendezvousBackend(client(), "job")) == [("a", b"29")]
    assert C10dRendezvousBackend(client(), "job").announce("b", b"") == 1


def test_a_reader_that_was_left_behind_folds_the_log_anew(client):
    sleeper, watcher, node = (C10dRendezvousBackend(client(), "job") for _ in range(3))
    node.announce("gone", b"")
    node.announce("a", b"0")
    assert len(sleeper.roster()) == 2
    node.withdraw("gone")
    for number in range(1, 20):
        node.announce("a", str(number).encode())
    watcher.roster()
    assert shown(sleeper) == [("a", b"19")]


def test_a_thousand_joins_and_leaves_leave_little_in_the_store(client):
    store = client()
    watcher = C10dRendezvousBackend(client(), "job")
    node = C10dRendezvousBackend(client(), "job")
    before = store.num_keys()
    for number in range(1000):
        node.announce(f"node{number}", b"x" * 200)
        node.withdraw(f"node{number}")
        if number % 10 == 0:
            watcher.roster()
    for _ in range(20):
        assert watcher.roster() == ()
    assert store.num_keys() - before < 1100  # a counter for each, and nothing more


def test_a_foreign_value_is_named(client):
    store = client()
    store.add(KEYS.slots, 1)
    store.set(KEYS.slot(1), "hello")
    with pytest.raises(RendezvousStateError, match="choose another run id"):
        C10dRendezvousBackend(client(), "job").roster()

"""The roster log: holes, readers that fell behind, and the keys that remain in the store."""

from __future__ import annotations

from datetime import timedelta

import pytest
from elastic_testing import FakeClock
from store_place import KEYS, shown

from elastic_core.builtin import MemoryStore
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.roster_log import CHUNK, values_there
from elastic_core.rendezvous.seal import HmacSeal

LONG = 60.0


@pytest.fixture
def clock():
    return FakeClock()


class Pruned(MemoryStore):
    """Deletes every key right after a check has found it, as nodes that prune the log do."""

    def check(self, keys):
        found = super().check(keys)
        for key in keys:
            self.delete_key(key)
        return found

    def get(self, key):
        raise AssertionError(f"this would wait for {key}, which is gone")


def test_key_deleted_while_read_is_not_awaited():
    """A `get` would wait for the store's own timeout of minutes, and the peers would consider the node lost."""
    store = Pruned(timedelta(seconds=30))
    store.set("beats", b"7")
    assert values_there(store, ["beats"]) == {}


# -- holes: slots that were taken and not filled


def test_hole_of_a_dead_joiner_delays_readers_briefly(place, clock):
    watcher = place.backend(clock=clock)
    dead = place.store.add(KEYS.slots, 1)
    place.backend().announce("a/1", b"1")
    assert shown(watcher) == []
    clock.advance(1.9)
    assert shown(watcher) == []
    clock.advance(0.2)
    assert shown(watcher) == [("a/1", b"1")]
    assert not place.store.check([KEYS.slot(dead)])
    assert shown(place.backend()) == [("a/1", b"1")]


def test_several_holes_are_given_up_together(place, clock):
    watcher = place.backend(clock=clock)
    for _ in range(5):
        place.store.add(KEYS.slots, 1)
    place.backend().announce("a/1", b"1")
    watcher.roster()
    clock.advance(2.1)
    assert shown(watcher) == [("a/1", b"1")]


def test_slow_joiner_takes_another_slot(place, clock):
    watcher, slow = place.backend(clock=clock), place.backend()

    def lose_patience():
        watcher.roster()
        clock.advance(3.0)
        watcher.roster()

    place.before("compare_set", KEYS.slot(1), lose_patience)
    slow.announce("a/1", b"1")
    assert not place.store.check([KEYS.slot(1)])
    assert shown(watcher) == shown(place.backend()) == [("a/1", b"1")]
    slow.announce("a/1", b"2")
    assert shown(watcher) == shown(place.backend()) == [("a/1", b"2")]


def test_hole_ends_a_wait_for_news(place, clock):
    watcher = place.backend(clock=clock, hole_patience=0.05)
    place.store.add(KEYS.slots, 1)
    watcher.roster()
    assert watcher.wait_for_roster(LONG) is True


def test_observer_gives_up_no_hole(place, clock):
    observer = place.backend(clock=clock, observes=True)
    place.store.add(KEYS.slots, 1)
    place.backend().announce("a/1", b"1")
    observer.roster()
    clock.advance(10.0)
    assert shown(observer) == []
    assert not place.store.check([KEYS.slot(1)])


# -- readers


def test_roster_exceeds_one_read(place):
    backend = place.backend()
    for number in range(2 * CHUNK + 7):
        backend.announce(f"node{number}/1", b"x")
    assert len(backend.roster()) == len(place.backend().roster()) == 2 * CHUNK + 7


@pytest.mark.parametrize("observes", [False, True])
def test_outdated_reader_rereads_the_log(place, observes):
    sleeper, watcher, node = place.backend(observes=observes), place.backend(), place.backend()
    node.announce("gone/1", b"")
    node.announce("a/1", b"0")
    assert len(sleeper.roster()) == 2
    node.withdraw("gone/1")
    for number in range(1, 20):
        node.announce("a/1", b"%d" % number)
    watcher.roster()
    assert shown(sleeper) == [("a/1", b"19")]


def test_node_announcing_during_a_read_is_shown(place):
    node, other = place.backend(), place.backend()
    node.announce("a/1", b"1")
    other.announce("b/1", b"1")
    place.before("check", [KEYS.slot(1), KEYS.slot(2)], lambda: other.announce("b/1", b"2"))
    newcomer = place.backend()
    assert [key for key, _ in shown(newcomer)] == ["a/1", "b/1"]
    assert shown(newcomer) == [("a/1", b"1"), ("b/1", b"2")]


def test_node_announcing_behind_a_hole_is_shown(place, clock):
    node = place.backend()
    node.announce("a/1", b"1")
    place.store.add(KEYS.slots, 1)  # never filled
    node.announce("a/1", b"2")
    assert shown(place.backend(clock=clock)) == [("a/1", b"1")]


def test_node_announcing_during_a_reread_is_shown(place):
    sleeper, watcher, node = (place.backend() for _ in range(3))
    node.announce("a/1", b"0")
    sleeper.roster()
    node.announce("a/1", b"1")
    node.announce("a/1", b"2")
    watcher.roster()

    def announce_once_more():
        node.announce("a/1", b"3")
        watcher.roster()

    place.before("compare_set", KEYS.base, announce_once_more)
    assert shown(sleeper) == [("a/1", b"3")]


def test_all_readers_agree_on_the_order(place):
    nodes = [place.backend() for _ in range(6)]
    for number, node in enumerate(nodes):
        node.announce(f"n{number}/1", b"")
    early = place.backend()
    early.roster()
    nodes[0].withdraw("n0/1")
    nodes[0].announce("n0/1", b"again")
    nodes[3].announce("n3/1", b"newer")
    expected = ["n1/1", "n2/1", "n3/1", "n4/1", "n5/1", "n0/1"]
    for reader in (early, place.backend(), nodes[5]):
        assert [key for key, _ in shown(reader)] == expected


# -- remaining keys


def test_dead_and_void_slots_at_the_front_are_deleted(place, clock):
    watcher, node = place.backend(clock=clock), place.backend()
    void_slot = place.store.add(KEYS.slots, 1)
    watcher.roster()
    clock.advance(3.0)
    for number in range(30):
        node.announce("a/1", b"%d" % number)
    watcher.roster()
    assert not any(place.store.check([KEYS.slot(number)]) for number in range(void_slot, 31))
    assert shown(place.backend()) == [("a/1", b"29")]
    assert place.backend().announce("b/1", b"") == 1


@pytest.mark.parametrize("died_at", [1, 5, 11])
def test_next_reader_deletes_what_a_dead_one_left(place, died_at):
    dying, node = place.backend(), place.backend()
    node.announce("old/1", b"")
    node.announce("gone/1", b"")
    node.withdraw("gone/1")
    for number in range(9):
        node.announce("old/1", b"%d" % number)
    place.lose("delete_key", KEYS.slot(died_at), lands=False)
    with pytest.raises(RendezvousConnectionError):
        dying.roster()
    assert place.store.check([KEYS.slot(died_at)])
    node.announce("old/1", b"last")
    assert shown(place.backend()) == [("old/1", b"last")]
    assert not any(place.store.check([KEYS.slot(number)]) for number in range(1, 13))
    assert not place.store.check([KEYS.beats(2, "gone/1")])


def test_failed_deletion_is_not_retried_for_long(place):
    def cannot(key):
        raise NotImplementedError

    place.store.delete_key = cannot
    watcher, node = place.backend(), place.backend()
    for number in range(100):
        node.announce("a/1", b"%d" % number)
        watcher.roster()
    asked = []
    place.entered = lambda operation, arguments: asked.append(operation)
    node.announce("a/1", b"last")
    assert shown(watcher) == [("a/1", b"last")]
    assert len(asked) < 20


def test_thousand_joins_and_leaves_leave_few_keys(place):
    watcher, node = place.backend(), place.backend()
    node.connect()
    before = place.store.num_keys()
    for number in range(1000):
        node.announce(f"node{number}/1", b"x" * 200)
        node.withdraw(f"node{number}/1")
        if number % 10 == 0:
            watcher.roster()
    for _ in range(20):
        assert watcher.roster() == ()
    assert place.store.num_keys() - before < 20


def test_old_entry_does_not_block_deletion(place):
    old, others = place.backend(), place.backend()
    old.announce("old/1", b"")
    before = place.store.num_keys()
    for number in range(1000):
        others.announce(f"node{number}/1", b"")
        others.withdraw(f"node{number}/1")
        if number % 10 == 0:
            old.beat("old/1", leading=True, look=True)
            old.roster()
    for _ in range(20):
        old.roster()
    assert [seen.key for seen in place.backend().roster()] == ["old/1"]
    assert place.store.num_keys() - before < 2000  # at most the entries between two of its reads


def test_entry_of_another_secret_is_deleted_eventually(place):
    ours, theirs = place.backend(), place.backend()
    ours.sign_with(HmacSeal("job", [b"0123456789abcdef"]))
    theirs.sign_with(HmacSeal("job", [b"fedcba9876543210"]))
    theirs.announce("other/1", b"")
    first, before = KEYS.slot(place.store.add(KEYS.slots, 0)), place.store.num_keys()

    def come_and_go(nodes):
        for number in range(nodes):
            ours.announce(f"node{number}/1", b"")
            ours.withdraw(f"node{number}/1")
            if number % 20 == 0:
                ours.roster()

    come_and_go(1000)
    assert place.store.check([first])
    come_and_go(2000)
    assert not place.store.check([first])
    assert place.store.num_keys() - before < 7000  # two slots and a counter for each of the last 2,048

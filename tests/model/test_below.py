"""What happens below the node is searched, too: between any two operations of a store."""

from __future__ import annotations

import pytest
from below import EVENTS, Below
from must_hold import Violation

from elastic_core.rendezvous import over_store, versions
from elastic_core.rendezvous.over_store import OverStore
from elastic_core.rendezvous.versions import Keys, Versions

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
LOSSES = ("fail", "restart", "crash", "forget", "older", "older")
MOVES = ("fail", "crash", "restart", "leave", "leave", "freeze")
BREAKS = ("fail", "crash", "restart", "answer lost", "never done", "done late", "freeze")


@pytest.mark.parametrize("machines", [2, 3])
@pytest.mark.parametrize("events", [EVENTS, LOSSES, MOVES, BREAKS], ids=["all", "losses", "moves", "breaks"])
def test_all_who_live_are_in_one_round_after_all(machines, events):
    for seed in range(8):
        Below(seed, machines, events).run(calm=4.0)


@pytest.mark.parametrize("machines", [2, 3])
def test_a_host_that_leaves_hands_its_store_over(machines):
    """If nothing fails and another node has joined, one takes the store over, whatever it is doing then."""
    for seed in range(130 if machines == 2 else 50):
        world = Below(seed, machines, ["leave"], most=1)
        world.run(calm=4.0, quiet=10.0)
        assert all(machine.handed_over is not False for machine in world.machines), seed


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("machines", [2, 3])
@pytest.mark.parametrize("events", [EVENTS, LOSSES, MOVES, BREAKS], ids=["all", "losses", "moves", "breaks"])
def test_many_worlds(machines, events):
    for seed in range(100, 700):
        Below(seed, machines, events, most=7).run(calm=4.0)


def found(seeds, **world):
    for seed in seeds:
        try:
            Below(seed, **world).run(calm=4.0)
        except Violation as violation:
            return str(violation)
    raise AssertionError("the planted fault was not found")


class TestPlanted:
    """Each of these faults is found."""

    def test_counters_of_slots_that_are_given_out_again(self, monkeypatch):
        monkeypatch.setattr(Keys, "beats", lambda self, first, key: self.state(0) + f"/b/{first}")
        found(range(5278, 5290), events=LOSSES, most=7, moves=False)

    def test_versions_of_one_number(self, monkeypatch):
        monkeypatch.setattr(Versions, "_is_stored", lambda self, store: True)
        found(range(10000, 10060), events=LOSSES, most=7, machines=2)

    def test_two_heirs(self, monkeypatch):
        """Both take over in the same turn, and the later one overwrites the first."""

        def create(store, key, value):
            return (store.set(key, value) or value) if key.endswith("/moved") else versions.create(store, key, value)

        monkeypatch.setattr(over_store, "create", create)
        monkeypatch.setattr(over_store, "turn", lambda heirs, own, listed: 0 if set(heirs) & set(own) else None)
        found(range(170, 190), events=MOVES)

    def test_versions_without_a_fence(self, monkeypatch):
        monkeypatch.setattr(Versions, "_created", lambda self, store, number, value: self._put(store, number, value))
        monkeypatch.setattr(
            Versions,
            "_put",
            lambda self, store, number, value: (
                store.set(self._keys.state(number), value) or self._raised_head(store, number) > 0
            ),
            raising=False,
        )
        found(range(100), machines=3, events=BREAKS)

    def test_an_epoch_that_is_left_in_silence(self, monkeypatch):
        monkeypatch.setattr(OverStore, "_leave", lambda self, store, epoch, found: None)
        found(range(200), events=LOSSES, moves=False)

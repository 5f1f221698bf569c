"""A job over a store in which another program writes invalid data, or the format of a newer elastic-core. Each node
logs it once, and the job continues. A node that joins when no other node knows better gets an error with the reason."""

from __future__ import annotations

import time

import pytest
from elastic_testing import eventually
from handler_job import Job, failure
from store_place import KEYS, Place

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.codec import decoded_state
from elastic_core.rendezvous.driver import Patience

pytestmark = pytest.mark.integration

YOUNGER = b'{"version": 99, "key": "x/1", "round": 7}'
NONSENSE = [b"hello", b"", YOUNGER, YOUNGER + b"\nand seats"]
INTERVAL = 0.05


class StoreJob(Job):
    """A job over a store. Its nodes send frequent heartbeats and have a long failure timeout."""

    def __init__(self):
        patience = Patience(answer=0.5)  # no node can leave while the state is unreadable
        super().__init__(2, 2, INTERVAL, 60, patience=patience, last_call=0.1)
        self.place = Place().begin()
        self.store = self.place.store
        self.third_party = self.backend()

    def backend(self):
        return self.place.backend()

    def write_state(self, value):
        """Replace the current state, whatever it is."""
        found = self.third_party.get_state()
        assert self.third_party.set_state(value, found and found[1])[2]

    def heartbeats(self):
        return sum(seen.beats for seen in self.third_party.roster())

    def check_healthy_for_a_second(self):
        """Check for a second that both nodes send heartbeats and their workers are left alone."""
        begun, beats = time.monotonic(), self.heartbeats()
        eventually(lambda: time.monotonic() - begun > 1.0 and self.heartbeats() > beats + 6)
        assert [handler.verdict() for handler in self.handlers.values()] == [None] * 2

    def heal(self):
        """Nothing is cut off."""

    def end(self):
        super().end()
        self.place.close()


@pytest.fixture
def job():
    job = StoreJob()
    yield job
    job.end()


# -- the state


def test_joining_with_foreign_value_is_an_error(job, capsys):
    job.place.store.set(KEYS.state(1), "hello")
    with pytest.raises(RendezvousStateError, match=r"'elastic/job/.*/s/1', found b'hello'; choose another run id"):
        job.node("a").next_rendezvous()
    job.end()
    assert capsys.readouterr().err.count("rendezvous fault") == 1


def test_unreadable_state_during_a_round_is_repaired(job, capsys):
    job.form("ab")
    for value in NONSENSE:
        job.write_state(value)
        eventually(lambda value=value: job.third_party.get_state()[0] != value)  # so that later nodes can join
        assert decoded_state(job.third_party.get_state()[0]).round.number == 1
    job.check_healthy_for_a_second()
    for name in "ab":
        job.handlers[name].report_failure(failure())
    assert {info.formed.number for info in job.form("ab").values()} == {2}
    assert capsys.readouterr().err.count("state overwritten") <= 2 * len(NONSENSE)  # once per node and value


# -- entries and the roster log


def test_unreadable_entries_are_logged_once_and_skipped(job, capsys):
    for number, value in enumerate(NONSENSE):
        job.place.backend().announce(f"third-party{number}/1", value)
    job.place.store.set(KEYS.slot(job.place.store.add(KEYS.slots, 1)), "hello")
    for _ in range(2):
        assert {info.world_size for info in job.form("ab").values()} == {2}
        for name in "ab":
            job.handlers[name].report_failure(failure())
    logged = [line for line in capsys.readouterr().err.splitlines() if "entry unreadable" in line]
    assert len({line.partition(" ")[2] for line in logged}) == len(NONSENSE) + 1
    assert len(logged) <= 2 * (len(NONSENSE) + 1)  # once per node that read the roster

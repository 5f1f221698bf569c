"""Builders of rendezvous values (states, entries, rosters) for tests of pure functions, and a factory of jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastic_core.clock import Instant
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.node import Member
from elastic_core.rendezvous.model import Entry, Report, RoundId, Seat, Seats, State
from elastic_core.rendezvous.roster import ObservedEntry
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

sys.path.insert(0, str(Path(__file__).parent))  # helper modules are next to the tests that use them


class Builders:
    """Nodes are letters; each letter is also the key, name and host unless the test gives others. Rounds are
    numbers."""

    @staticmethod
    def settings(min_nodes=1, max_nodes=4, **changes):
        return RendezvousSettings("job", min_nodes, max_nodes, RendezvousTimeout(last_call=5, close=60), **changes)

    @staticmethod
    def entry(key, **changes):
        return Entry(**_with_ids({"key": key, "node": key, "host": key, **changes}))

    @classmethod
    def seen(cls, key, late=False, since=0.0, **changes):
        return ObservedEntry(cls.entry(key, **changes), late, Instant(since))

    @classmethod
    def roster(cls, keys, late="", **changes):
        return tuple(cls.seen(key, late=key in late, **changes) for key in keys)

    @staticmethod
    def seats(keys):
        return Seats.of(Seat(key, Member(key, key, "", "default", 1)) for key in keys)

    @classmethod
    def state(cls, keys, **changes):
        """A state in which a round with these members runs."""
        return State(**_with_ids({"round": 1, "open": True, "seats": cls.seats(keys), "max_restarts": 3, **changes}))

    @staticmethod
    def failure(rank=0, **changes):
        return ProcessFailure(**{"local_rank": 0, "pid": 7, "exitcode": 1, "global_rank": rank, **changes})

    @classmethod
    def report(cls, key, certain=True, **changes):
        return Report(key, key, (cls.failure(**changes),), certain)


def _with_ids(values):
    return {k: RoundId(v) if k in ("round", "after", "done") and isinstance(v, int) else v for k, v in values.items()}


@pytest.fixture
def build():
    return Builders


@pytest.fixture
def place():
    from store_place import Place

    place = Place().begin()
    yield place
    place.close()


@pytest.fixture
def job():
    """Function that creates a job; its handlers are shut down at the end of the test."""
    from handler_job import Job

    made = []

    def make(*args, **kwargs):
        made.append(Job(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.end()

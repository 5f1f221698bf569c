"""Jobs as an observer sees them: hand-made states and entries, and a backend of two methods in memory."""

from __future__ import annotations

import pytest

from elastic_core.config import Settings
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.backend import Announced, RosterBackend
from elastic_core.interfaces.node import Member
from elastic_core.operate.observation import JobObservation
from elastic_core.rendezvous.codec import encoded_entry, encoded_state
from elastic_core.rendezvous.model import Entry, RoundId, Seat, Seats, State
from elastic_core.rendezvous.roster import Observation


class Job:
    """Builders of what an observer reads. Nodes are letters; `a/1` is the key of node `a`."""

    target = Settings(rdzv_backend="toy", rdzv_endpoint="here:1", rdzv_id="job")

    @staticmethod
    def entry(name, **more):
        values = {"key": f"{name}/1", "node": name, "host": f"host-{name}", "address": f"addr-{name}"}
        rounds = {field: RoundId(more.pop(field)) for field in ("after", "done") if field in more}
        return Entry(**values | more | rounds)

    @classmethod
    def entries(cls, names, **more):
        return tuple(cls.entry(name, **more) for name in names)

    @staticmethod
    def seats(names):
        return Seats.of(
            Seat(f"{name}/1", Member(name, f"host-{name}", f"addr-{name}", "default", 2), 1) for name in names
        )

    @classmethod
    def state(cls, names, **changes):
        """A state in which round 3 runs with these members."""
        return State(**{"round": RoundId(3), "open": True, "seats": cls.seats(names), "max_restarts": 3, **changes})

    @staticmethod
    def announced(entry, beats=0):
        return Announced(entry.key, encoded_entry(entry), beats)

    @classmethod
    def observation(cls, state=None, entries=(), silent="", leased=False):
        """The observation after six seconds in which all nodes but those in `silent` send heartbeats."""
        data = None if state is None else encoded_state(state)
        seen = JobObservation(0.0, 0.0, Observation(1.0, 5))
        for second in range(7):
            beats = {e.key: None if leased else 0 if e.node in silent else second for e in entries}
            seen = seen.after_look(data, [cls.announced(e, beats[e.key]) for e in entries], float(second))
        return seen


class FixedBackend(RosterBackend):
    """Shows the given pairs of state and announced entries, one per look; the last one stays."""

    def __init__(self, *looks):
        self.looks = list(looks)
        self.asked = 0
        self.closed = False

    @property
    def name(self):
        return "fixed"

    def roster(self):
        look = self.looks[min(self.asked, len(self.looks) - 1)]
        self.asked += 1
        return tuple(look[1])

    def get_state(self):
        state = self.looks[min(self.asked, len(self.looks)) - 1][0]
        return None if state is None else (encoded_state(state), 1)

    def close(self):
        self.closed = True

    def refuse(self, *_):
        raise AssertionError("an observer must only look")

    set_state = announce = withdraw = beat = wait_for_state = wait_for_roster = refuse


@pytest.fixture
def job():
    return Job


@pytest.fixture
def fixed_backend():
    return FixedBackend


@pytest.fixture
def failure():
    """Function that creates a worker's failure from its global rank."""

    def failure(rank, **more):
        return ProcessFailure(**{"local_rank": 0, "pid": 7, "exitcode": 1, "global_rank": rank, **more})

    return failure

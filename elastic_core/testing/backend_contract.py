"""What every rendezvous backend must do, as tests. A backend proves itself in ten lines:

class TestMyBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        self.place = tmp_path
        return MyBackend(self.place, "job")

    def peer(self, backend):
        return MyBackend(self.place, "job")
"""

from __future__ import annotations

from elastic_core.testing.roster_promises import RosterPromises
from elastic_core.testing.round_promises import RoundPromises
from elastic_core.testing.state_promises import StatePromises


class BackendContract(StatePromises, RosterPromises, RoundPromises):
    """See `interfaces.backend`. For pytest: inherit from it, give a fixture `backend`, a client of a new job, which
    nobody else uses, and a method `peer`, another client of that job, as another node has one.

    What the backend can show, it shows with three more methods: `other_job`, a client of the same store
    for another job; `lose`, which takes the store away; `spoil`, which writes something foreign in the state's place.
    Their tests are skipped where they are not given.

    A backend of two methods is tested as far as it goes, and then end to end: handlers over it form rounds. One that is
    a `RosterBackend` is tested for its entries, beats, waits and `close` as well.

    Attributes:
        largest: bytes of the largest state that is tried (300,000).
        lease: seconds after which the entry of a node that beats no longer has been dropped, where the store does that
            (20).
        at_once: seconds within which what is to come back at once has come back, on any machine (10).
    """

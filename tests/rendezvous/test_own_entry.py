"""One node's entry, over a memory that forgets, on a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.errors import RendezvousStateError
from elastic_core.rendezvous.codec import decoded_entry, encoded_state
from elastic_core.rendezvous.known import Known
from elastic_core.rendezvous.line import Line
from elastic_core.rendezvous.lookout import Lookout
from elastic_core.rendezvous.own_entry import OwnEntry
from elastic_core.rendezvous.reach import Reach
from elastic_core.rendezvous.state_copy import StateCopy
from elastic_core.testing import FakeClock, MemoryBackend, SharedMemory


class Rig:
    def __init__(self, settings):
        self.memory, self.clock = SharedMemory(), FakeClock()
        self.backend, self.known = MemoryBackend(self.memory), Known("a", lambda view: None)
        lookout = Lookout("a", settings)
        reach = Reach(self.clock, settings, lookout.expect_all_back)
        copy = StateCopy(self.backend, reach, self.known, lookout, self.clock)
        self.line = Line("a", self.backend, reach, self.known, lookout, settings)
        self.own = OwnEntry("a", self.backend, reach, self.known, copy, self.line, self.clock, 1.0)

    def want(self, entry):
        self.own.wanted = entry
        self.own.keep()

    def forget(self):
        self.memory.forget()
        self.known.lost_entry()

    @property
    def stands(self):
        announced = self.memory.entries.get("a")
        return announced and decoded_entry(announced.entry)


@pytest.fixture
def rig(say):
    return Rig(say.settings())


def test_what_is_wanted_is_announced_once(rig, say):
    rig.want(say.entry("a"))
    rig.own.keep()
    assert rig.stands == rig.known.view.announced == say.entry("a")
    assert rig.backend.calls["announce"] == 1


def test_where_nothing_is_wanted_nothing_happens(rig):
    rig.own.keep()
    rig.own.restore()
    rig.own.beat(rig.clock.now())
    assert not rig.backend.calls


def test_what_leads_to_a_round_that_is_past_is_not_announced(rig, say):
    rig.known.took(say.state("a", round=2), 1)
    rig.known.took(say.state("b", round=3), 2)
    rig.want(say.entry("a", after=1))
    assert rig.stands is None
    rig.want(say.entry("a", after=2))
    assert rig.stands.after == 2


def test_after_an_outage_what_stood_there_stands_there_first(rig, say):
    rig.want(say.entry("a"))
    rig.own.wanted = say.entry("a", after=1)
    rig.forget()
    rig.own.restore()
    assert rig.stands == say.entry("a")


def test_it_is_restored_also_when_the_state_cannot_be_read(rig, say):
    rig.known.took(say.state("a"), 1)
    rig.want(say.entry("a"))
    rig.forget()
    rig.memory.state = (encoded_state(say.state("a"))[:-1], 9)
    with pytest.raises(RendezvousStateError):
        rig.own.restore()
    assert rig.stands == say.entry("a")


def test_it_is_taken_back_unless_it_is_wanted_again(rig, say):
    rig.line.leading = True
    rig.want(say.entry("a"))
    rig.own.withdraw()
    assert rig.stands is not None
    rig.own.wanted = None
    rig.own.withdraw()
    assert rig.stands is rig.known.view.announced is None
    assert not rig.line.leading


def test_it_beats_once_in_an_interval(rig, say):
    rig.want(say.entry("a"))
    for _ in range(13):
        rig.own.beat(rig.clock.now())
        rig.clock.advance(0.25)
    assert rig.backend.calls["beat"] == 3


def test_another_entry_of_the_same_node_is_no_beat(rig, say):
    rig.want(say.entry("a"))
    rig.clock.advance(0.75)
    rig.want(replace(say.entry("a"), after=1))
    assert rig.own.next_beat == 1.0

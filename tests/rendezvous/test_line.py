"""Who leads: one node's place in the line, over a memory in which others lead or fall silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.clock import Instant, later
from elastic_core.rendezvous.codec import encoded_entry
from elastic_core.rendezvous.known import Known
from elastic_core.rendezvous.line import Line
from elastic_core.rendezvous.lookout import Lookout
from elastic_core.rendezvous.reach import Reach
from elastic_core.testing import FakeClock, MemoryBackend, SharedMemory

SILENCE = 6  # looks, one a second, after which the next in line steps in


class Rig:
    """Entries of a, b and c, in this order; the line is b's."""

    def __init__(self, say):
        self.memory, settings = SharedMemory(), say.settings()
        for key in "abc":
            MemoryBackend(self.memory).announce(key, encoded_entry(say.entry(key)))
        backend, self.known = MemoryBackend(self.memory), Known("b", lambda view: None)
        self.lookout = Lookout("b", settings)
        reach = Reach(FakeClock(), settings, self.lookout.expect_all_back)
        self.line = Line("b", backend, reach, self.known, self.lookout, settings)
        self.line.older = 1
        self.known.show(replace(self.known.view, announced=say.entry("b")))
        self.known.roster_news = False
        self.now = Instant(0.0)

    def feel(self, *values):
        """The leaders' counter, once a second."""
        for value in values:
            self.now = later(self.now, 1.0)
            self.line.feel(value, self.now, self.line.place())

    def late(self):
        """Who is late, at the next look."""
        self.lookout.look(MemoryBackend(self.memory).roster())
        self.lookout.judge(self.known.state, self.now)
        return [seen.entry.key for seen in self.lookout.roster if seen.late]


@pytest.fixture
def rig(say):
    return Rig(say)


def test_without_a_round_those_who_wait_stand_by_age(rig):
    assert rig.line.place().position == 1
    assert not rig.line.is_first()


def test_members_stand_by_rank_and_the_first_leads(rig, say):
    rig.known.took(say.state("bac"), 1)
    assert rig.line.is_first()
    assert rig.line.leading


def test_without_an_entry_nobody_leads(rig):
    rig.line.older = 0
    rig.known.lost_entry()
    assert not rig.line.is_first()


def test_while_somebody_counts_nobody_steps_in(rig):
    rig.feel(*range(20))
    assert not rig.line.leading


def test_when_nobody_counts_the_next_steps_in_and_holds_the_first_to_be_late(rig):
    rig.feel(*[7] * SILENCE)
    assert rig.line.leading
    assert rig.known.roster_news
    assert rig.memory.lead == 1  # counted before anything is written
    assert rig.late() == ["a"]


def test_a_silence_makes_the_line_news(rig):
    rig.feel(7, 7, 7)
    assert not rig.known.line_news
    rig.feel(7, 7, 7, 7)
    assert rig.known.line_news


def test_who_leads_out_of_turn_steps_back_when_another_counts_too(rig):
    rig.feel(*[7] * SILENCE)
    rig.feel(2, 3)
    assert rig.line.leading
    rig.feel(5)
    assert not rig.line.leading


def test_a_vacancy_is_filled_at_once_by_the_next(rig):
    rig.line.fill_vacancy(Instant(1.0))
    assert not rig.line.leading
    rig.memory.vacant = True
    rig.line.fill_vacancy(Instant(1.0))
    assert rig.line.leading


def test_the_line_is_counted_anew_without_the_members_of_the_last_round(rig, say):
    rig.known.took(say.state("a", open=False, gone=("a",)), 1)
    rig.known.line_news = True
    rig.line.recount()
    assert rig.line.older == 0
    assert not rig.known.line_news
    assert rig.line.place().position == 0

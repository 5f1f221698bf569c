"""One node's copy of the state, over a memory to which others write too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.codec import decoded_state, encoded_state
from elastic_core.rendezvous.known import Known
from elastic_core.rendezvous.lookout import Lookout
from elastic_core.rendezvous.reach import Reach
from elastic_core.rendezvous.state import State, closed, drained
from elastic_core.rendezvous.state_copy import MOST_REFUSALS, StateCopy
from elastic_core.rendezvous.ticket import Ticket
from elastic_core.testing import FakeClock, MemoryBackend, SharedMemory


class Rig:
    def __init__(self, settings):
        self.memory, clock = SharedMemory(), FakeClock()
        self.backend, self.known = MemoryBackend(self.memory), Known("a", lambda view: None)
        self.lookout = Lookout("a", settings)
        reach = Reach(clock, settings, self.lookout.expect_all_back)
        self.copy = StateCopy(self.backend, reach, self.known, self.lookout, clock)

    def write(self, state):
        """As somebody else does."""
        token = self.memory.state and self.memory.state[1]
        assert MemoryBackend(self.memory).set_state(encoded_state(state), token)[2]

    @property
    def stands(self):
        return decoded_state(self.memory.state[0])


@pytest.fixture
def rig(say):
    return Rig(say.settings())


def test_what_stands_in_the_store_is_known_once_it_is_read(rig, say):
    rig.write(say.state("ab"))
    rig.copy.read()
    assert rig.known.state == say.state("ab")
    assert (rig.known.state_news, rig.known.line_news) == (False, False)


def test_where_nothing_stands_there_is_a_new_state(rig):
    rig.copy.read()
    assert rig.known.view.state == State()
    assert rig.known.view.token is None


def test_when_nobody_of_the_round_is_left_the_line_is_to_be_counted_anew(rig, say):
    rig.write(say.state("ab", open=False, gone=("a", "b")))
    rig.copy.read()
    assert rig.known.line_news


def test_a_write_is_counted_and_known(rig, say):
    rig.copy.read()
    assert rig.copy.write(say.state("a"))
    assert rig.stands == rig.known.state == replace(say.state("a"), serial=1)


def test_a_write_over_what_is_not_known_is_refused_and_then_it_is_known(rig, say):
    rig.copy.read()
    rig.write(say.state("b"))
    assert not rig.copy.write(say.state("a"))
    assert rig.stands == rig.known.state == say.state("b")


def test_an_amendment_is_made_to_what_others_wrote_meanwhile(rig, say):
    rig.copy.read()
    rig.write(say.state("ab"))
    rig.copy.amend(Ticket(lambda state: drained(state, "b", "b")))
    assert rig.stands.draining == ("b",)
    assert rig.stands.round == 1


def test_an_amendment_that_has_nothing_to_change_writes_nothing(rig):
    rig.copy.read()
    rig.copy.amend(Ticket(lambda state: state))
    assert rig.memory.writes == 0


def test_an_amendment_that_others_always_beat_is_given_up_for_now(rig, say):
    def beaten(state):
        rig.write(replace(say.state("ab"), serial=rig.memory.writes + 1))
        return closed(state, "a", "enough", succeeded=False)

    rig.copy.read()
    ticket = Ticket(beaten)
    with pytest.raises(RendezvousConnectionError, match="others always did so"):
        rig.copy.amend(ticket)
    assert rig.memory.writes == MOST_REFUSALS
    assert ticket.fault is None


def test_what_an_amendment_raises_is_its_fault(rig):
    rig.copy.read()
    ticket = Ticket(lambda state: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rig.copy.amend(ticket)
    assert isinstance(ticket.fault, ZeroDivisionError)


def test_a_store_without_its_memory_gets_back_what_is_known(rig, say, capsys):
    rig.copy.read()
    rig.copy.write(say.state("ab"))
    rig.known.show(replace(rig.known.view, announced=say.entry("a")))
    rig.memory.forget()
    rig.copy.read()
    assert rig.stands == replace(say.state("ab"), serial=1)
    assert rig.known.view.announced is None
    assert rig.lookout.settled == say.settings().window
    assert "store lost its state" in capsys.readouterr().err

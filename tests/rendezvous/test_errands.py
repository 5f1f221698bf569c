"""Waiting for a keeper that is turned by hand or not at all."""

from __future__ import annotations

import pytest

from elastic_core.clock import SystemClock
from elastic_core.errors import RendezvousConnectionError, RendezvousGracefulExitError
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.errands import Errands
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.part import Part
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.threads import KeeperThreads
from elastic_core.rendezvous.views import Views
from elastic_core.testing import MemoryBackend, SharedMemory


class Rig:
    def __init__(self):
        clock, settings = SystemClock(), RendezvousSettings("job", 1, 1, RendezvousTimeout())
        self.backend, node = MemoryBackend(SharedMemory()), Node("a", host="a")
        entry = entry_of(node, "a/1")
        self.views = Views(clock)
        self.keeper = Keeper(self.backend, settings, entry, clock, self.views.take)
        self.threads = KeeperThreads(self.keeper, self.backend, clock)
        self.part = Part(node, entry, self.keeper, self.threads, self.views)
        self.errands = Errands(self.keeper, self.threads, self.backend, self.views, self.part, clock)


@pytest.fixture
def rig():
    return Rig()


def test_what_is_done_is_not_waited_for(rig):
    ticket = rig.keeper.amend(lambda state: state)
    rig.keeper.turn()
    rig.errands.carry_out(ticket)


def test_what_is_not_done_in_time_is_an_error(rig):
    ticket = rig.keeper.amend(lambda state: state)
    assert not rig.errands.try_it(ticket, 0.01)
    with pytest.raises(RendezvousConnectionError, match=r"within 0\.01 s"):
        rig.errands.carry_out(ticket, 0.01)


def test_a_known_outage_is_the_error(rig):
    rig.backend.reachable = False
    ticket = rig.keeper.amend(lambda state: state)
    rig.keeper.turn()
    with pytest.raises(RendezvousConnectionError) as caught:
        rig.errands.carry_out(ticket, 0.01)
    assert caught.value is rig.views.last.outage


def test_what_can_never_be_done_raises_why(rig):
    ticket = rig.keeper.amend(lambda state: 1 / 0)
    rig.keeper.turn()
    assert not rig.errands.try_it(ticket, 0.01)
    with pytest.raises(ZeroDivisionError):
        rig.errands.carry_out(ticket)


def test_after_the_end_nothing_is_waited_for(rig):
    rig.part.shut_down()
    rig.threads.stop()
    with pytest.raises(RendezvousGracefulExitError, match="shut down"):
        rig.errands.carry_out(rig.keeper.look())


def test_who_says_goodbye_has_withdrawn(rig):
    rig.threads.start()
    rig.part.want(after=0)
    assert rig.errands.say_goodbye()
    assert rig.keeper.view.announced is None
    assert rig.threads.stop()

"""What a node tells the others: a keeper turned by hand carries it out."""

from __future__ import annotations

import pytest

from elastic_core.errors import RendezvousGracefulExitError, RendezvousStateError
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.codec import decoded_entry
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.part import Part
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.state import Cause
from elastic_core.rendezvous.threads import KeeperThreads
from elastic_core.rendezvous.view import View
from elastic_core.rendezvous.views import Views
from elastic_core.testing import FakeClock, MemoryBackend, SharedMemory


class Rig:
    """The part of a node that is alone in its job."""

    def __init__(self):
        clock, settings = FakeClock(), RendezvousSettings("job", 1, 1, RendezvousTimeout())
        self.memory = SharedMemory()
        backend, node = MemoryBackend(self.memory), Node("a", host="a", max_restarts=2)
        entry = entry_of(node, "a/1")
        self.views = Views(clock)
        self.keeper = Keeper(backend, settings, entry, clock, self.views.take)
        self.part = Part(node, entry, self.keeper, KeeperThreads(self.keeper, backend, clock), self.views)

    def join(self):
        self.part.want(after=self.part.round)
        self.keeper.turn()
        self.part.round = self.state.round

    @property
    def state(self):
        return self.views.last.state

    @property
    def entry(self):
        announced = self.memory.entries.get("a/1")
        return announced and decoded_entry(announced.entry)


@pytest.fixture
def rig():
    return Rig()


def test_what_it_wants_is_announced_with_the_place_of_its_store(rig):
    rig.part.want(after=0, where=RendezvousStoreInfo("10.0.0.1", 4711))
    rig.keeper.turn()
    assert (rig.entry.after, rig.entry.address, rig.entry.port) == (0, "10.0.0.1", 4711)
    rig.part.want(after=3)
    rig.keeper.turn()
    assert (rig.part.after, rig.entry.address, rig.entry.port) == (3, "10.0.0.1", 4711)


def test_who_steps_back_has_no_entry(rig):
    rig.join()
    rig.part.step_back()
    rig.keeper.turn()
    assert rig.entry is None


def test_a_failure_ends_its_round_with_what_it_knows_of_the_budget(rig, say):
    rig.join()
    rig.part.fail({0: say.failure()})
    rig.keeper.turn()
    assert (rig.state.open, rig.state.end.cause, rig.state.max_restarts) == (False, Cause.FAILURE, 2)


def test_success_is_announced(rig):
    rig.join()
    rig.part.succeed()
    rig.keeper.turn()
    assert (rig.entry.after, rig.entry.done) == (0, 1)


def test_who_wants_a_new_round_while_its_last_one_runs_ends_that(rig):
    rig.join()
    rig.part.give_up_round()
    rig.keeper.turn()
    assert rig.state.end.cause is Cause.LEFT
    assert rig.state.end.reason == "a wants a new round"


def test_a_round_that_is_over_is_not_given_up(rig, say):
    rig.join()
    rig.part.fail({0: say.failure()})
    rig.part.give_up_round()
    rig.keeper.turn()
    assert rig.state.end.cause is Cause.FAILURE


def test_before_the_first_round_there_is_none_to_give_up(rig):
    rig.part.give_up_round()
    rig.keeper.turn()
    assert rig.memory.writes == 0


def test_who_leaves_tells_why_and_has_no_entry(rig):
    rig.join()
    ticket = rig.part.leave("the machine is needed")
    rig.part.go("once is enough")
    rig.keeper.turn()
    assert ticket.done.is_set()
    assert rig.entry is None
    assert "the machine is needed" in rig.state.end.reason


def test_who_leaves_when_it_is_done_ends_nothing(rig):
    rig.join()
    rig.part.succeed()
    rig.part.leave("all is done")
    rig.keeper.turn()
    assert (rig.state.done, rig.state.gone) == (("a/1",), ())


def test_no_entry_comes_after_the_withdrawal(rig):
    rig.join()
    rig.part.leave("enough")
    rig.part.want(after=1)
    rig.part.succeed()
    rig.keeper.turn()
    assert rig.entry is None


def test_who_begins_anew_may_want_a_round_again(rig):
    rig.join()
    rig.part.leave("enough")
    rig.keeper.turn()
    rig.part.begin()
    rig.part.want(after=1)
    rig.keeper.turn()
    assert rig.entry.after == 1


def test_it_is_shut_down_once_and_for_all(rig):
    assert rig.part.shut_down()
    assert not rig.part.shut_down()
    rig.part.want(after=0)
    rig.keeper.turn()
    assert rig.entry is None
    with pytest.raises(RendezvousGracefulExitError, match="shut down"):
        rig.part.check()


def test_only_a_fault_with_words_of_our_own_ends_the_waiting(rig):
    rig.part.check()
    rig.views.take(View(fault=ValueError("odd")))
    rig.part.check()
    rig.views.take(View(fault=RendezvousStateError("unknown version")))
    with pytest.raises(RendezvousStateError, match="unknown version"):
        rig.part.check()

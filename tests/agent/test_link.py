"""The link polls a plain handler and passes on the verdicts of a round handler."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from agent_fakes import FakeRounds
from elastic_testing import FakeClock

from elastic_core.agent.link import LONGEST_INTERVAL, Link
from elastic_core.builtin import LocalRendezvousHandler, MemoryStore
from elastic_core.clock import Instant
from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.handler import Outcome, RendezvousInfo, RendezvousStoreInfo, Verdict
from elastic_core.interfaces.node import Member, Round

NO_ANSWER = RendezvousConnectionError("no answer")


class Waiting(LocalRendezvousHandler):
    """Returns or raises the given answers in turn, then 0, while it may answer."""

    polled = True

    def __init__(self, clock, answers=()):
        super().__init__("job")
        self.clock = clock
        self.answers = list(answers)
        self.asked = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.joined = 0

    def next_rendezvous(self):
        self.joined += 1
        return RendezvousInfo(MemoryStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 1))

    def num_nodes_waiting(self):
        self.asked.append(self.clock.now())
        assert self.may_answer.wait(60)
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Patient(Waiting):
    outage_patience = None


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def answered():
    """Set whenever the link notifies the agent."""
    return threading.Event()


@pytest.fixture
def plain(clock, answered):
    def make(handler, interval=0.25):
        link = Link(handler, clock, interval, answered.set)
        link.joined()
        return link

    return make


@pytest.fixture
def poll(clock, answered):
    """Ask for a verdict whenever the link wants to be asked, and after each answer; returns the verdicts after the
    answers."""

    def poll(link, times):
        found = []
        for _ in range(times):
            clock.advance(max(link.ask_again() - clock.now(), 0.0))
            verdict = link.verdict(running=True)
            while link.ask_again() is None:  # the handler has not answered yet
                assert answered.wait(60)
                answered.clear()
                verdict = link.verdict(running=True)
            found.append(verdict)
        return found

    return poll


def test_polling_of_a_plain_handler_slows_down(clock, plain, poll):
    handler = Waiting(clock)
    assert poll(plain(handler), 6) == [None] * 6
    gaps = [after - before for before, after in zip([0.0, *handler.asked], handler.asked, strict=False)]
    assert gaps == [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert LONGEST_INTERVAL == 1.0


def test_handler_is_polled_only_when_due_and_workers_run(clock, plain):
    handler = Waiting(clock, [1])
    link = plain(handler)
    assert link.verdict(running=True) is None
    clock.advance(100.0)
    assert link.verdict(running=False) is None
    assert handler.asked == []


def test_local_handler_is_never_polled(clock, plain):
    link = plain(LocalRendezvousHandler("job"))
    clock.advance(100.0)
    assert (link.ask_again(), link.verdict(running=True)) == (None, None)


def test_outage_is_tolerated_for_60_s_and_logged_once(clock, capsys, plain, poll):
    handler = Waiting(clock, [NO_ANSWER] * 1000)
    link = plain(handler, interval=1.0)
    with pytest.raises(RendezvousConnectionError, match="no answer"):
        poll(link, 1000)
    assert handler.asked[-1] - handler.asked[0] == handler.outage_patience == 60.0
    assert capsys.readouterr().err.count("rendezvous out of reach") == 1


def test_unlimited_patience_tolerates_any_outage(clock, capsys, plain, poll):
    handler = Patient(clock, [NO_ANSWER] * 1000)
    link = plain(handler, interval=1.0)
    assert poll(link, 1000) == [None] * 1000
    assert handler.asked[-1] - handler.asked[0] == 999.0
    assert capsys.readouterr().err.count("rendezvous out of reach") == 1


def test_blocked_poll_does_not_block_the_agent(clock, plain, answered):
    """A store that does not answer can block a handler for minutes. Signals and failures must not wait for it."""
    handler = Waiting(clock, [1])
    handler.may_answer.clear()
    link = plain(handler)
    clock.advance(0.25)
    assert [link.verdict(running=True) for _ in range(3)] == [None] * 3
    assert link.ask_again() is None
    handler.may_answer.set()
    assert answered.wait(60)
    assert link.verdict(running=True) == Verdict(Outcome.RESTART, "1 more node can join")
    assert len(handler.asked) == 1


def test_node_joins_after_the_poll_has_ended(clock, plain):
    """Handlers written for torchrun need not be thread-safe."""
    handler = Waiting(clock, [0])
    handler.may_answer.clear()
    link = plain(handler)
    clock.advance(0.25)
    link.verdict(running=True)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(link.join, Round(2, (Member("", "", "", "trainer", 1),)))
        assert not wait([joining], timeout=0.05).done
        assert handler.joined == 0
        handler.may_answer.set()
        assert joining.result(60) is not None
    assert handler.joined == 1


def test_recovery_resets_the_outage(clock, capsys, plain, poll):
    outage = [ValueError("whatever a library raises")] * 50
    link = plain(Waiting(clock, [*outage, 0, *outage, 0, 1]), interval=1.0)
    assert [verdict.outcome for verdict in poll(link, 103) if verdict] == [Outcome.RESTART]
    assert capsys.readouterr().err.count("rendezvous out of reach") == 2


def test_past_deadline_does_not_make_the_agent_spin(clock):
    handler = FakeRounds()
    link = Link(handler, clock, 0.1, lambda: None)
    handler.deadline = Instant(-5.0)
    assert link.ask_again() == 0.05
    handler.deadline = Instant(7.0)
    assert link.ask_again() == 7.0


@pytest.mark.parametrize("outcome", [Outcome.CLOSED, Outcome.FENCED])
def test_leave_is_not_announced_when_closed_or_fenced(outcome, clock):
    handler = FakeRounds()
    link = Link(handler, clock, 0.1, lambda: None)
    handler.give(Verdict(outcome, "over"))
    link.leave("received SIGTERM")
    assert handler.calls == []


class Breaks(FakeRounds):
    def leave(self, reason, timeout):
        raise NO_ANSWER


def test_failed_leave_is_logged_but_not_raised(clock, capsys):
    Link(Breaks(), clock, 0.1, lambda: None).leave("received SIGTERM")
    assert 'round left: reason="received SIGTERM" notified=false error="no answer"' in capsys.readouterr().err

"""The link polls a plain handler and passes on the verdicts of a round handler."""

from __future__ import annotations

import pytest
from agent_fakes import FakeRounds
from elastic_testing import FakeClock

from elastic_core.agent.link import LONGEST_INTERVAL, Link
from elastic_core.builtin import LocalRendezvousHandler
from elastic_core.clock import Instant
from elastic_core.errors import RendezvousConnectionError
from elastic_core.interfaces.handler import Outcome, Verdict

NO_ANSWER = RendezvousConnectionError("no answer")


class Waiting(LocalRendezvousHandler):
    """Returns or raises the given answers in turn, then 0. `takes`: seconds for each answer."""

    polled = True

    def __init__(self, clock, answers=(), takes=0.0):
        super().__init__("job")
        self.clock = clock
        self.answers = list(answers)
        self.takes = takes
        self.asked = []

    def num_nodes_waiting(self):
        self.asked.append(self.clock.now())
        self.clock.advance(self.takes)
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Patient(Waiting):
    outage_patience = None


@pytest.fixture
def clock():
    return FakeClock()


def plain(handler, clock, interval=0.25):
    link = Link(handler, clock, interval, lambda: None)
    link.joined()
    return link


def poll(link, clock, times):
    """Ask for a verdict whenever the link wants to be asked; returns all verdicts."""
    logged = []
    for _ in range(times):
        clock.advance(max(link.ask_again() - clock.now(), 0.0))
        logged.append(link.verdict(running=True))
    return logged


def test_polling_of_a_plain_handler_slows_down(clock):
    handler = Waiting(clock)
    assert poll(plain(handler, clock), clock, 6) == [None] * 6
    gaps = [after - before for before, after in zip([0.0, *handler.asked], handler.asked, strict=False)]
    assert gaps == [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert LONGEST_INTERVAL == 1.0


def test_waiting_node_ends_the_round(clock):
    link = plain(Waiting(clock, [0, 2]), clock)
    assert poll(link, clock, 2) == [None, Verdict(Outcome.RESTART, "2 more nodes can join")]


def test_handler_is_polled_only_when_due_and_workers_run(clock):
    handler = Waiting(clock, [1])
    link = plain(handler, clock)
    assert link.verdict(running=True) is None
    clock.advance(100.0)
    assert link.verdict(running=False) is None
    assert handler.asked == []


def test_local_handler_is_never_polled(clock):
    link = plain(LocalRendezvousHandler("job"), clock)
    clock.advance(100.0)
    assert (link.ask_again(), link.verdict(running=True)) == (None, None)


def test_outage_is_tolerated_for_60_s_and_logged_once(clock, capsys):
    handler = Waiting(clock, [NO_ANSWER] * 1000)
    link = plain(handler, clock, interval=1.0)
    with pytest.raises(RendezvousConnectionError, match="no answer"):
        poll(link, clock, 1000)
    assert handler.asked[-1] - handler.asked[0] == handler.outage_patience == 60.0
    assert capsys.readouterr().err.count("rendezvous out of reach") == 1


def test_unlimited_patience_tolerates_any_outage(clock, capsys):
    handler = Patient(clock, [NO_ANSWER] * 1000)
    link = plain(handler, clock, interval=1.0)
    assert poll(link, clock, 1000) == [None] * 1000
    assert handler.asked[-1] - handler.asked[0] == 999.0
    assert capsys.readouterr().err.count("rendezvous out of reach") == 1


def test_slow_first_failure_is_tolerated(clock):
    assert poll(plain(Waiting(clock, [NO_ANSWER], takes=300.0), clock), clock, 1) == [None]


def test_slow_handler_is_polled_less_often(clock):
    """Each poll blocks the agent's thread."""
    handler = Patient(clock, [NO_ANSWER] * 3, takes=60.0)
    poll(plain(handler, clock, interval=1.0), clock, 3)
    assert handler.asked == [1.0, 601.0, 1201.0]


def test_recovery_resets_the_outage(clock, capsys):
    outage = [ValueError("whatever a library raises")] * 50
    link = plain(Waiting(clock, [*outage, 0, *outage, 0, 1]), clock, interval=1.0)
    assert [verdict.outcome for verdict in poll(link, clock, 103) if verdict] == [Outcome.RESTART]
    assert capsys.readouterr().err.count("rendezvous out of reach") == 2


@pytest.mark.parametrize("error", [NO_ANSWER, ValueError("no answer")])
def test_close_error_is_appended_to_the_reason(clock, error):
    class Unclosable(Waiting):
        def set_closed(self):
            raise error

    assert plain(Unclosable(clock), clock).close() == "; the other nodes could not be notified: no answer"


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

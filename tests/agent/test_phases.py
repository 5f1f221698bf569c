"""The phases that an agent reports: when each begins, and why."""

from __future__ import annotations

import signal

import pytest
from agent_fakes import FakeRounds, FakeWorkers, round_info
from elastic_testing import FakeClock
from round_of_two import fail, succeed

from elastic_core.clock import Instant
from elastic_core.errors import DrainedError, RendezvousClosedError, SignalException
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.workers import Expiry

PAIR = (("trainer", 2), ("trainer", 2))
PEER_FAILED = Verdict(Outcome.RESTART, "rank 3 on node1: killed by SIGKILL", failed=True)
NODE_JOINED = Verdict(Outcome.RESTART, "node5 joined")
DRAINED = Verdict(Outcome.DRAINED, "requested by the operator")
NOT_HERE = "this node's workers had not succeeded"
JOB_DONE = Verdict(Outcome.CLOSED, "all workers succeeded", succeeded=True, by="node1")
JOB_FAILED = Verdict(Outcome.CLOSED, "rank 3; no restart left", by="node1")
FENCED = Verdict(Outcome.FENCED, "the store has not answered for 30 s")

WAITS = "joining: waits for the round to form"
FORMED = "starting: all are here"
BEGIN = [WAITS, FORMED, "running"]


def two_nodes(number):
    return round_info(number, PAIR, reason="all are here")


@pytest.fixture
def make(make_node):
    """A function that makes a node in a round of two.

    `story`: worker scripts for the first, second, ... round; each also gets the node, and the last one is repeated.
    The clock only advances on request, because the reason of a phase changes after three seconds.
    """
    made = []

    def make(*story, on_success=lambda rounds: rounds.give(JOB_DONE), rounds=None, clock=None, **spec):
        def on_start(plan, workers):
            (left.pop(0) if len(left) > 1 else left[0])(node, plan, workers)

        left = list(story)
        handler = FakeRounds(rounds or [two_nodes(1), two_nodes(2), two_nodes(3)], on_success=on_success)
        made.append(handler)
        node = make_node(handler=handler, workers=Slow(on_start, clock), clock=clock or FakeClock(), **spec)
        return node

    yield make
    for handler in made:
        handler.shutdown()


class Slow(FakeWorkers):
    """Workers that take three seconds to stop, if a clock is given."""

    def __init__(self, on_start, clock):
        super().__init__(on_start)
        self.clock = clock

    def send_signal(self, signum):
        if self.clock and signum == signal.SIGTERM:
            self.clock.advance(3.0)
        super().send_signal(signum)


def does(script):
    return lambda node, plan, workers: script(plan, workers)


def gives(verdict):
    return lambda node, plan, workers: node.handler.give(verdict)


def phases(node):
    return [": ".join(filter(None, (fact.phase.value, fact.reason))) for fact in node.observer.phases]


def test_successful_run_has_all_phases(make):
    node = make(does(succeed))
    node.run()
    closed = "every worker succeeded; the job was closed by node1: all workers succeeded"
    assert phases(node) == [*BEGIN, "finishing: every worker succeeded", f"finished: {closed}"]
    assert {fact.run_id for fact in node.observer.phases} == {"job"}
    assert [(fact.round, fact.local_rank, fact.exitcode) for fact in node.observer.exits] == [(1, 0, 0), (1, 1, 0)]


def test_stopping_begins_before_the_failure_is_reported(make):
    clock = FakeClock()
    node = make(does(fail), does(succeed), clock=clock, max_restarts=1)
    shown = []
    node.handler.report_failure = lambda failures: shown.append(len(node.observer.phases))
    node.run()
    assert phases(node)[3:7] == ["stopping: rank 0: exit code 3", *BEGIN]
    stopping, joining = node.observer.phases[3:5]
    assert (stopping.at, stopping.sign, joining.at - stopping.at, shown[0]) == (0.0, 0.0, 3.0, 4)
    assert (node.observer.exits[0].local_rank, node.observer.exits[0].exitcode) == (0, 3)


def test_stopping_reason_is_updated_by_the_verdict(make):
    def both(node, plan, workers):
        node.handler.give(PEER_FAILED)
        fail(plan, workers)

    node = make(both, does(succeed), max_restarts=1)
    node.run()
    assert phases(node)[3:6] == ["stopping: rank 0: exit code 3", f"stopping: {PEER_FAILED.reason}", WAITS]


@pytest.mark.parametrize("verdict", [PEER_FAILED, NODE_JOINED, FENCED])
def test_verdict_from_another_node_starts_stopping(verdict, make):
    clock = FakeClock()
    node = make(gives(verdict), does(succeed), clock=clock, max_restarts=1)
    node.run()
    assert phases(node)[:7] == [*BEGIN, f"stopping: {verdict.reason}", *BEGIN]
    stopping, joining = node.observer.phases[3:5]
    assert (stopping.at, stopping.sign, joining.at - stopping.at) == (0.0, 0.0, 3.0)


def test_first_sign_of_a_hang_is_the_missed_deadline(make):
    clock = FakeClock()
    clock.advance(100.0)

    def hang(node, plan, workers):
        clock.advance(7.0)
        node.agent.timer_expired(Expiry(1001, "step", late=2.5))

    node = make(hang, does(fail), does(succeed), clock=clock, max_restarts=2)
    node.run()
    stopping = [fact for fact in node.observer.phases if fact.phase.value == "stopping"]
    assert stopping[0].reason.startswith("rank 1: hang")
    assert (stopping[0].at, stopping[0].sign) == (107.0, 104.5)
    assert stopping[1].at == stopping[1].sign  # not affected by the hang in the round before


def test_finished_node_stops_and_rejoins_when_needed(make):
    verdicts = [PEER_FAILED, JOB_DONE]
    node = make(does(succeed), on_success=lambda rounds: rounds.give(verdicts.pop(0)), max_restarts=1)
    node.run()
    done = "finishing: every worker succeeded"
    assert phases(node)[:8] == [*BEGIN, done, f"stopping: {PEER_FAILED.reason}", *BEGIN]


@pytest.mark.parametrize(
    ("verdict", "phase", "raised"),
    [
        (DRAINED, "draining: drained: requested by the operator", DrainedError),
        (
            JOB_DONE,
            "stopping: the job was closed by node1: all workers succeeded; " + NOT_HERE,
            RendezvousClosedError,
        ),
        (JOB_FAILED, "stopping: the job was closed by node1: rank 3; no restart left", RendezvousClosedError),
    ],
)
def test_final_verdict_sets_the_last_phase(verdict, phase, raised, make):
    node = make(gives(verdict))
    try:
        node.run()
        assert not raised
    except Exception as error:  # noqa: BLE001 - its type is asserted
        assert isinstance(error, raised)
    *before, finished = phases(node)
    assert before == [*BEGIN, phase]
    assert finished.startswith("finished: ")


def test_signal_starts_draining(make):
    node = make(lambda node, plan, workers: node.agent.receive_signal(signal.SIGTERM))
    with pytest.raises(SignalException):
        node.run()
    left = "finished: stopped by SIGTERM"
    assert phases(node) == [*BEGIN, "draining: received SIGTERM", left]


class Jumping:
    """A clock that advances by four seconds whenever it is read."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        self.at += 4.0
        return Instant(self.at)

    def timestamp(self):
        return self.at


def test_nodes_waited_for_are_in_the_reason(make):
    node = make(does(succeed), clock=Jumping(), on_success=lambda rounds: None, exit_barrier_timeout=20)
    node.handler.missing = "1 of 2 nodes joined, missing: node1"
    node.run()
    shown = phases(node)
    assert "finishing: waits for the workers of other nodes to succeed: 1 of 2 nodes joined, missing: node1" in shown

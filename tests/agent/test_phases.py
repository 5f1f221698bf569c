"""The phases that an agent reports: when each begins, and why."""

from __future__ import annotations

import pytest
from elastic_testing import FakeClock
from round_of_two import (
    DRAINED,
    FAILED_ELSEWHERE,
    FENCED,
    JOB_DONE,
    NODE_JOINED,
    PEER_FAILED,
    TERM,
    Ordered,
    fail,
    in_turn,
    succeed,
    two_nodes,
)

from elastic_core.clock import Instant
from elastic_core.errors import DrainedError, RendezvousClosedError, SignalException
from elastic_core.interfaces.workers import Expiry

WAITS = "joining: waits for the round to form"
FORMED = "starting: all are here"
BEGIN = [WAITS, FORMED, "running"]
CLOSED = "the job was closed by node2: "


class Slow(Ordered):
    """Workers that take three seconds to stop, if they have a clock."""

    clock = None

    def send_signal(self, signum):
        if self.clock and signum == TERM:
            self.clock.advance(3.0)
        super().send_signal(signum)


@pytest.fixture
def make_slow(make):
    """Like `make`, with a worker script for each round. The clock only advances on request, because the reason of a
    phase changes after three seconds."""

    def make_slow(*story, clock=None, **more):
        rounds = [two_nodes(number, reason="all are here") for number in (1, 2, 3)]
        node = make(in_turn(*story), rounds, workers=Slow, clock=clock or FakeClock(), **more)
        node.workers.clock = clock
        return node

    return make_slow


def phases(node):
    return [": ".join(filter(None, (fact.phase.value, fact.reason))) for fact in node.observer.phases]


def test_successful_run_has_all_phases(make_slow):
    node = make_slow(succeed)
    node.run()
    assert phases(node) == [
        *BEGIN,
        "finishing: every worker succeeded",
        f"finished: every worker succeeded; {CLOSED}{JOB_DONE.reason}",
    ]
    assert {fact.run_id for fact in node.observer.phases} == {"job"}
    assert [(fact.round, fact.local_rank, fact.exitcode) for fact in node.observer.exits] == [(1, 0, 0), (1, 1, 0)]


def test_stopping_begins_before_the_failure_is_reported(make_slow):
    clock = FakeClock()
    node = make_slow(fail, succeed, clock=clock, max_restarts=1)
    shown = []
    node.handler.report_failure = lambda failures: shown.append(len(node.observer.phases))
    node.run()
    assert phases(node)[3:7] == ["stopping: rank 0: exit code 3", *BEGIN]
    stopping, joining = node.observer.phases[3:5]
    assert (stopping.at, stopping.sign, joining.at - stopping.at, shown[0]) == (0.0, 0.0, 3.0, 4)
    assert (node.observer.exits[0].local_rank, node.observer.exits[0].exitcode) == (0, 3)


def test_stopping_reason_is_updated_by_the_verdict(make_slow):
    def both(plan, workers):
        node.handler.give(PEER_FAILED)
        fail(plan, workers)

    node = make_slow(both, succeed, max_restarts=1)
    node.run()
    assert phases(node)[3:6] == ["stopping: rank 0: exit code 3", f"stopping: {PEER_FAILED.reason}", WAITS]


@pytest.mark.parametrize("verdict", [PEER_FAILED, NODE_JOINED, FENCED])
def test_verdict_from_another_node_starts_stopping(verdict, make_slow):
    clock = FakeClock()
    node = make_slow(lambda plan, workers: node.handler.give(verdict), succeed, clock=clock, max_restarts=1)
    node.run()
    assert phases(node)[:7] == [*BEGIN, f"stopping: {verdict.reason}", *BEGIN]
    stopping, joining = node.observer.phases[3:5]
    assert (stopping.at, stopping.sign, joining.at - stopping.at) == (0.0, 0.0, 3.0)


def test_first_sign_of_a_hang_is_the_missed_deadline(make_slow):
    clock = FakeClock()
    clock.advance(100.0)

    def hang(plan, workers):
        clock.advance(7.0)
        node.agent.timer_expired(Expiry(1001, "step", late=2.5))

    node = make_slow(hang, fail, succeed, clock=clock, max_restarts=2)
    node.run()
    stopping = [fact for fact in node.observer.phases if fact.phase.value == "stopping"]
    assert stopping[0].reason.startswith("rank 1: hang")
    assert (stopping[0].at, stopping[0].sign) == (107.0, 104.5)
    assert stopping[1].at == stopping[1].sign  # not affected by the hang in the round before


def test_finished_node_stops_and_rejoins_when_needed(make_slow):
    verdicts = [PEER_FAILED, JOB_DONE]
    node = make_slow(succeed, on_success=lambda rounds: rounds.give(verdicts.pop(0)), max_restarts=1)
    node.run()
    done = "finishing: every worker succeeded"
    assert phases(node)[:8] == [*BEGIN, done, f"stopping: {PEER_FAILED.reason}", *BEGIN]


@pytest.mark.parametrize(
    ("verdict", "phase", "raised"),
    [
        (DRAINED, "draining: drained: requested by the operator", DrainedError),
        (
            JOB_DONE,
            f"stopping: {CLOSED}{JOB_DONE.reason}; this node's workers had not succeeded",
            RendezvousClosedError,
        ),
        (FAILED_ELSEWHERE, f"stopping: {CLOSED}{FAILED_ELSEWHERE.reason}", RendezvousClosedError),
    ],
)
def test_final_verdict_sets_the_last_phase(verdict, phase, raised, make_slow):
    node = make_slow(lambda plan, workers: node.handler.give(verdict))
    with pytest.raises(raised):
        node.run()
    *before, finished = phases(node)
    assert before == [*BEGIN, phase]
    assert finished.startswith("finished: ")


def test_signal_starts_draining(make_slow):
    node = make_slow(lambda plan, workers: node.agent.receive_signal(TERM))
    with pytest.raises(SignalException):
        node.run()
    assert phases(node) == [*BEGIN, "draining: received SIGTERM", "finished: stopped by SIGTERM"]


class Jumping:
    """A clock that advances by four seconds whenever it is read."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        self.at += 4.0
        return Instant(self.at)

    def timestamp(self):
        return self.at


def test_nodes_waited_for_are_in_the_reason(make_slow):
    node = make_slow(succeed, clock=Jumping(), on_success=lambda rounds: None, exit_barrier_timeout=20)
    node.handler.missing = "1 of 2 nodes joined, missing: node1"
    node.run()
    shown = phases(node)
    assert "finishing: waits for the workers of other nodes to succeed: 1 of 2 nodes joined, missing: node1" in shown

"""The phases that an agent tells of: when each begins, and why."""

from __future__ import annotations

import signal

import pytest
from agent_fakes import FakeRounds, FakeWorkers, round_info
from elastic_testing import FakeClock
from round_of_two import fail, succeed

from elastic_core.clock import Instant
from elastic_core.errors import DrainedError, RendezvousClosedError, SignalException
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.watchdog import Expiry

PAIR = (("trainer", 2), ("trainer", 2))
PEER_FAILED = Verdict(Outcome.RESTART, "rank 3 on node1: killed by SIGKILL", failed=True)
NODE_CAME = Verdict(Outcome.RESTART, "node5 has come")
DRAINED = Verdict(Outcome.DRAINED, "somebody asked for it")
NOT_HERE = "this node's workers had not succeeded"
WELL = Verdict(Outcome.CLOSED, "all workers succeeded", succeeded=True, by="node1")
BADLY = Verdict(Outcome.CLOSED, "rank 3; no restart left", by="node1")
FENCED = Verdict(Outcome.FENCED, "the store has not answered for 30 s")

WAITS = "joining: waits for the round to form"
FORMED = "starting: all are here"
BEGIN = [WAITS, FORMED, "running"]


def two_nodes(number):
    return round_info(number, PAIR, reason="all are here")


@pytest.fixture
def make(make_node):
    """A node of a round of two, and a story: what its workers do in the first, second, ... round. Each of them is given
    the node; the last one stays. On its clock no time passes that is not told to: a phase has another reason after
    three seconds."""
    made = []

    def make(*story, on_success=lambda rounds: rounds.give(WELL), rounds=None, clock=None, **spec):
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
    """Workers that need three seconds to stop, if there is a clock that can be told to."""

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


def test_a_run_that_succeeds(make):
    node = make(does(succeed))
    node.run()
    closed = "every worker succeeded; the job was closed by node1: all workers succeeded"
    assert phases(node) == [*BEGIN, "finishing: every worker succeeded", f"finished: {closed}"]
    assert {fact.run_id for fact in node.observer.phases} == {"job"}
    assert [(fact.round, fact.local_rank, fact.exitcode) for fact in node.observer.exits] == [(1, 0, 0), (1, 1, 0)]


def test_the_stop_after_a_failure_begins_before_anything_is_decided(make):
    clock = FakeClock()
    node = make(does(fail), does(succeed), clock=clock, max_restarts=1)
    told = []
    node.handler.report_failure = lambda failures: told.append(len(node.observer.phases))
    node.run()
    assert phases(node)[3:7] == ["stopping: rank 0: exit code 3", *BEGIN]
    stopping, joining = node.observer.phases[3:5]
    assert (stopping.at, stopping.sign, joining.at - stopping.at, told[0]) == (0.0, 0.0, 3.0, 4)
    assert (node.observer.exits[0].local_rank, node.observer.exits[0].exitcode) == (0, 3)


def test_who_is_held_to_have_failed_first_is_told_when_it_is_known(make):
    def both(node, plan, workers):
        node.handler.give(PEER_FAILED)
        fail(plan, workers)

    node = make(both, does(succeed), max_restarts=1)
    node.run()
    assert phases(node)[3:6] == ["stopping: rank 0: exit code 3", f"stopping: {PEER_FAILED.reason}", WAITS]


@pytest.mark.parametrize("verdict", [PEER_FAILED, NODE_CAME, FENCED])
def test_a_round_that_others_end(verdict, make):
    clock = FakeClock()
    node = make(gives(verdict), does(succeed), clock=clock, max_restarts=1)
    node.run()
    assert phases(node)[:7] == [*BEGIN, f"stopping: {verdict.reason}", *BEGIN]
    stopping, joining = node.observer.phases[3:5]
    assert (stopping.at, stopping.sign, joining.at - stopping.at) == (0.0, 0.0, 3.0)


def test_a_hang_shows_when_the_worker_should_have_come_on(make):
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
    assert stopping[1].at == stopping[1].sign  # the hang of the round before has no part in this one


def test_a_node_needed_again_by_others_after_its_workers_succeeded(make):
    verdicts = [PEER_FAILED, WELL]
    node = make(does(succeed), on_success=lambda rounds: rounds.give(verdicts.pop(0)), max_restarts=1)
    node.run()
    done = "finishing: every worker succeeded"
    assert phases(node)[:8] == [*BEGIN, done, f"stopping: {PEER_FAILED.reason}", *BEGIN]


@pytest.mark.parametrize(
    ("verdict", "phase", "raised"),
    [
        (DRAINED, "draining: drained: somebody asked for it", DrainedError),
        (WELL, "stopping: the job was closed by node1: all workers succeeded; " + NOT_HERE, RendezvousClosedError),
        (BADLY, "stopping: the job was closed by node1: rank 3; no restart left", RendezvousClosedError),
    ],
)
def test_what_ends_a_node_whose_workers_run(verdict, phase, raised, make):
    node = make(gives(verdict))
    try:
        node.run()
        assert not raised
    except Exception as error:  # noqa: BLE001 - which one is not the point here
        assert isinstance(error, raised)
    *before, finished = phases(node)
    assert before == [*BEGIN, phase]
    assert finished.startswith("finished: ")


def test_a_signal_while_workers_run(make):
    node = make(lambda node, plan, workers: node.agent.receive_signal(signal.SIGTERM))
    with pytest.raises(SignalException):
        node.run()
    left = "finished: stopped by SIGTERM"
    assert phases(node) == [*BEGIN, "draining: received SIGTERM", left]


class Jumping:
    """A clock on which every look takes four seconds."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        self.at += 4.0
        return Instant(self.at)

    def timestamp(self):
        return self.at


def test_who_is_waited_for_is_a_reason(make):
    node = make(does(succeed), clock=Jumping(), on_success=lambda rounds: None, exit_barrier_timeout=20)
    node.handler.missing = "1 of 2 nodes joined, missing: node1"
    node.run()
    told = phases(node)
    assert "finishing: waits for the workers of other nodes to succeed: 1 of 2 nodes joined, missing: node1" in told

"""The exit barrier of the local agent, with a round handler."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from elastic_testing import FakeClock, eventually
from round_of_two import (
    DRAINED,
    FAILED_ELSEWHERE,
    FENCED,
    FOREVER,
    JOB_DONE,
    PEER_FAILED,
    TERM,
    THEIRS,
    decided,
    fail,
    in_turn,
    let_time_pass,
    pair_then,
    succeed,
    two_nodes,
)

from elastic_core.agent import WorkerState
from elastic_core.errors import RendezvousClosedError, SignalException


def test_finished_node_waits_for_other_nodes(make):
    ready = threading.Event()
    node = make(succeed, on_success=lambda rounds: ready.set())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(node.run)
        assert ready.wait(60)
        assert not running.done()
        node.handler.give(JOB_DONE)
        result = running.result(60)
    assert (result.state, result.return_values) == (WorkerState.SUCCEEDED, {0: None, 1: None})
    assert node.finished.reason == "every worker succeeded; the job was closed by node2: all workers succeeded"
    assert node.handler.calls == [("next_rendezvous",), ("report_success",)]


# Events end the wait of a node that hosts the job's store, too, even if its exit barrier has timed out.
BOTH = pytest.mark.parametrize(("hosts_store", "timeout"), [(False, FOREVER), (True, 0.0)], ids=["guest", "host"])


@BOTH
def test_finished_node_rejoins_after_a_failure_elsewhere(make, hosts_store, timeout):
    verdicts = [PEER_FAILED, JOB_DONE]
    node = make(
        succeed,
        pair_then(two_nodes(2, restart_count=1)),
        on_success=lambda rounds: rounds.give(verdicts.pop(0)),
        exit_barrier_timeout=timeout,
    )
    node.handler.hosts_store = hosts_store
    assert node.run().state is WorkerState.SUCCEEDED
    assert [plan.restart_count for plan in node.workers.plans] == [0, 1]
    assert node.handler.calls_to("report_success") == [(), ()]
    assert [fact.cause for fact in decided(node)] == ["failure"]


def test_known_failure_elsewhere_suppresses_the_success_report(make):
    def on_start(plan, workers):
        succeed(plan, workers)
        node.handler.give(PEER_FAILED)

    node = make(in_turn(on_start, succeed))
    node.run()
    assert node.handler.calls_to("report_success") == [()]
    assert len(node.workers.plans) == 2


def test_job_failure_elsewhere_fails_a_finished_node(make):
    node = make(succeed, on_success=lambda rounds: rounds.give(FAILED_ELSEWHERE))
    with pytest.raises(RendezvousClosedError, match="this node's workers had succeeded") as closed:
        node.run()
    assert closed.value.failures == THEIRS
    assert node.order == []


def test_exit_barrier_times_out(make, capsys):
    clock = FakeClock()
    node = make(succeed, on_success=lambda rounds: clock.advance(300.0), clock=clock)
    assert node.run().state is WorkerState.SUCCEEDED
    why = "every worker succeeded; other nodes' workers did not finish in time (exit barrier)"
    assert (node.finished.reason, node.handler.calls_to("leave")) == (why, [(why, 2.0)])
    assert "exit barrier left" in capsys.readouterr().err


def test_exit_barrier_timeout_of_0_does_not_wait(make):
    node = make(succeed, on_success=None, exit_barrier_timeout=0.0)
    assert node.run().state is WorkerState.SUCCEEDED
    assert "exit barrier" in node.finished.reason


@BOTH
def test_signal_ends_the_exit_barrier(make, hosts_store, timeout):
    node = make(succeed, on_success=lambda rounds: node.agent.receive_signal(TERM), exit_barrier_timeout=timeout)
    node.handler.hosts_store = hosts_store
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave"]


@BOTH
@pytest.mark.parametrize(("verdict", "order"), [(DRAINED, ["leave"]), (FENCED, [])], ids=["drained", "fenced"])
def test_finished_node_succeeds_when_drained_or_fenced(make, verdict, order, hosts_store, timeout, capsys):
    node = make(succeed, on_success=lambda rounds: rounds.give(verdict), exit_barrier_timeout=timeout)
    node.handler.hosts_store = hosts_store
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == order
    assert "exit barrier left" in capsys.readouterr().err


def test_nodes_waited_for_are_logged(make, logged):
    def others():
        let_time_pass(node, clock)
        node.handler.give(JOB_DONE)

    clock, thread = FakeClock(), threading.Thread(target=others)
    node = make(succeed, on_success=lambda rounds: thread.start(), clock=clock, exit_barrier_timeout=FOREVER)
    node.handler.missing = "1 of 2 succeeded, missing: node1"
    assert node.run().state is WorkerState.SUCCEEDED
    thread.join(60)
    lines = logged()
    assert 'still waiting: waiting_for="the workers of other nodes to succeed" seconds=' in lines
    assert 'progress="1 of 2 succeeded, missing: node1"' in lines


def test_failed_node_skips_the_exit_barrier(make):
    node = make(fail, pair_then(RendezvousClosedError("no restart left")))
    node.run()
    assert node.handler.calls_to("report_success") == []


@pytest.fixture
def host(make):
    """A node that hosts the job's store and whose exit barrier times out immediately."""
    node = make(succeed, on_success=None, exit_barrier_timeout=0.0)
    node.handler.hosts_store = True
    return node


def test_store_host_stays_while_other_nodes_work(host, logged):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(host.run)
        lines = eventually(lambda: (text := logged()) and "exit barrier prolonged" in text and text)
        host.handler.give(None)
        host.handler.give(None)
        assert not running.done()
        host.handler.give(JOB_DONE)
        assert running.result(60).state is WorkerState.SUCCEEDED
    assert "this process hosts the store for other nodes" in lines
    assert (lines + logged()).count("exit barrier prolonged") == 1
    assert host.handler.calls_to("leave") == []


def test_signal_ends_the_wait_for_a_handover(host):
    release, returned = threading.Event(), []

    def hand_over():
        host.agent.receive_signal(TERM)
        returned.append(release.wait(20))
        host.handler.hosts_store = False
        return True

    host.handler.hand_over = hand_over
    with pytest.raises(SignalException):
        host.run()
    assert (host.order, host.handler.calls_to("hurry"), returned) == (["leave"], [], [])
    release.set()


def test_second_signal_ends_the_wait_for_an_announcement(make):
    """The handler does not wait for other nodes either."""
    clock, release = FakeClock(), threading.Event()
    node = make(succeed, on_success=lambda rounds: node.agent.receive_signal(TERM), clock=clock)

    def leave(reason, timeout):
        clock.advance(1.0)
        node.agent.receive_signal(TERM)
        return release.wait(20)

    node.handler.leave = leave
    with pytest.raises(SignalException):
        node.run()
    assert node.handler.calls_to("hurry") == [()]
    release.set()


def test_two_signals_before_an_announcement_hurry_it(make):
    """The signals came while the workers were being stopped."""
    clock, release = FakeClock(), threading.Event()

    def twice(rounds):
        node.agent.receive_signal(TERM)
        clock.advance(1.0)
        node.agent.receive_signal(TERM)

    node = make(succeed, on_success=twice, clock=clock)
    node.handler.leave = lambda reason, timeout: release.wait(20)
    with pytest.raises(SignalException):
        node.run()
    assert node.handler.calls_to("hurry") == [()]
    release.set()

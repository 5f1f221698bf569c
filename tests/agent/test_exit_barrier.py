"""The exit barrier of the local agent, with a handler of rounds."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from elastic_testing import FakeClock, eventually
from round_of_two import (
    DRAINED,
    FAILED_ELSEWHERE,
    FENCED,
    FOR_EVER,
    PEER_FAILED,
    TERM,
    THEIRS,
    WELL,
    decided,
    fail,
    let_time_pass,
    pair_then,
    succeed,
    then,
    two_nodes,
)

from elastic_core.agent import WorkerState
from elastic_core.errors import RendezvousClosedError, SignalException


def test_a_node_that_is_done_waits_for_the_others(make):
    ready = threading.Event()
    node = make(succeed, on_success=lambda rounds: ready.set())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(node.run)
        assert ready.wait(60)
        assert not running.done()
        node.handler.give(WELL)
        result = running.result(60)
    assert (result.state, result.return_values) == (WorkerState.SUCCEEDED, {0: None, 1: None})
    assert node.finished.reason == "every worker succeeded; the job was closed by node2: all workers succeeded"
    assert node.handler.calls == [("next_rendezvous",), ("report_success",)]


def test_a_node_that_is_done_takes_part_again_when_another_fails(make):
    verdicts = [PEER_FAILED, WELL]
    node = make(
        succeed,
        pair_then(two_nodes(2, restart_count=1)),
        on_success=lambda rounds: rounds.give(verdicts.pop(0)),
    )
    assert node.run().state is WorkerState.SUCCEEDED
    assert [plan.restart_count for plan in node.workers.plans] == [0, 1]
    assert node.handler.named("report_success") == [(), ()]
    assert [fact.cause for fact in decided(node)] == ["failure"]


def test_a_failure_elsewhere_that_is_known_already_is_no_success_of_the_job(make):
    def on_start(plan, workers):
        succeed(plan, workers)
        node.handler.give(PEER_FAILED)

    node = make(then(on_start, succeed), on_success=lambda rounds: rounds.give(WELL))
    node.run()
    assert node.handler.named("report_success") == [()]
    assert len(node.workers.plans) == 2


def test_a_job_that_fails_elsewhere_after_this_node_was_done(make):
    node = make(succeed, on_success=lambda rounds: rounds.give(FAILED_ELSEWHERE))
    with pytest.raises(RendezvousClosedError, match="this node's workers had succeeded") as closed:
        node.run()
    assert closed.value.failures == THEIRS
    assert node.order == []


def test_the_wait_for_others_has_an_end(make, capsys):
    clock = FakeClock()
    node = make(succeed, on_success=lambda rounds: clock.advance(300.0), clock=clock)
    assert node.run().state is WorkerState.SUCCEEDED
    why = "every worker succeeded; other nodes' workers did not finish in time (exit barrier)"
    assert (node.finished.reason, node.handler.named("leave")) == (why, [(why, 2.0)])
    assert "exit barrier left" in capsys.readouterr().err


def test_the_wait_for_others_is_as_long_as_one_says(make):
    node = make(succeed, exit_barrier_timeout=0.0)
    assert node.run().state is WorkerState.SUCCEEDED
    assert "exit barrier" in node.finished.reason


def test_a_signal_ends_the_wait_for_others(make):
    node = make(succeed, on_success=lambda rounds: node.agent.receive_signal(TERM))
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave"]


def test_a_node_that_is_cut_off_when_it_is_done_has_succeeded(make, capsys):
    node = make(succeed, on_success=lambda rounds: rounds.give(FENCED))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == []
    assert "exit barrier left" in capsys.readouterr().err


def test_a_node_that_is_drained_when_it_is_done(make):
    node = make(succeed, on_success=lambda rounds: rounds.give(DRAINED))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["leave"]


def test_who_is_waited_for_is_told(make, said):
    def others():
        let_time_pass(node, clock)
        node.handler.give(WELL)

    clock, thread = FakeClock(), threading.Thread(target=others)
    node = make(succeed, on_success=lambda rounds: thread.start(), clock=clock, exit_barrier_timeout=FOR_EVER)
    node.handler.missing = "1 of 2 succeeded, missing: node1"
    assert node.run().state is WorkerState.SUCCEEDED
    thread.join(60)
    lines = said()
    assert 'still waiting: waiting_for="the workers of other nodes to succeed" seconds=' in lines
    assert 'progress="1 of 2 succeeded, missing: node1"' in lines


def test_no_barrier_after_a_failure(make):
    node = make(fail, pair_then(RendezvousClosedError("no restart left")))
    node.run()
    assert node.handler.named("report_success") == []


@pytest.fixture
def host(make):
    """A node whose process has the store of the job, and whose time in the barrier is over when it comes there."""

    def host(**kwargs):
        node = make(then(succeed), exit_barrier_timeout=0.0, **kwargs)
        node.handler.hosts_store = True
        return node

    return host


def test_who_hosts_the_store_stays_while_others_work(host, said):
    node = host()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(node.run)
        lines = eventually(lambda: (text := said()) and "exit barrier prolonged" in text and text)
        node.handler.give(None)
        node.handler.give(None)
        assert not running.done()
        node.handler.give(WELL)
        assert running.result(60).state is WorkerState.SUCCEEDED
    assert "this process hosts the store for other nodes" in lines
    assert (lines + said()).count("exit barrier prolonged") == 1
    assert node.handler.named("leave") == []


@pytest.mark.parametrize(
    ("verdict", "order"), [(DRAINED, ["leave"]), (FENCED, []), (WELL, [])], ids=["drained", "fenced", "closed"]
)
def test_who_hosts_the_store_goes_when_it_need_not_stay(verdict, order, host):
    node = host(on_success=lambda rounds: rounds.give(verdict))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == order


def test_who_hosts_the_store_takes_part_again_when_another_fails(host):
    verdicts = [PEER_FAILED, WELL]
    node = host(on_success=lambda rounds: rounds.give(verdicts.pop(0)))
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.workers.plans) == 2


def test_who_hosts_the_store_goes_with_a_signal(host):
    node = host(on_success=lambda rounds: node.agent.receive_signal(TERM))
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave"]


def test_signal_ends_the_wait_for_a_handover(host):
    node = host()
    go_on, returned = threading.Event(), []

    def hand_over():
        node.agent.receive_signal(TERM)
        returned.append(go_on.wait(20))
        node.handler.hosts_store = False
        return True

    node.handler.hand_over = hand_over
    with pytest.raises(SignalException):
        node.run()
    assert (node.order, node.handler.named("hurry"), returned) == (["leave"], [], [])
    go_on.set()


def test_second_signal_ends_the_wait_for_an_announcement(make):
    """Then the handler does not wait for other nodes either."""
    clock, go_on = FakeClock(), threading.Event()
    node = make(succeed, on_success=lambda rounds: node.agent.receive_signal(TERM), clock=clock)

    def leave(reason, timeout):
        clock.advance(1.0)
        node.agent.receive_signal(TERM)
        return go_on.wait(20)

    node.handler.leave = leave
    with pytest.raises(SignalException):
        node.run()
    assert node.handler.named("hurry") == [()]
    go_on.set()


def test_two_signals_before_an_announcement_hurry_it(make):
    """They came while the workers were stopped."""
    clock, go_on = FakeClock(), threading.Event()

    def twice(rounds):
        node.agent.receive_signal(TERM)
        clock.advance(1.0)
        node.agent.receive_signal(TERM)

    node = make(succeed, on_success=twice, clock=clock)
    node.handler.leave = lambda reason, timeout: go_on.wait(20)
    with pytest.raises(SignalException):
        node.run()
    assert node.handler.named("hurry") == [()]
    go_on.set()

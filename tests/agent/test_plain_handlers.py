"""The local agent with handlers that were written for torchrun."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from elastic_testing import eventually
from round_of_two import fail, in_turn, succeed

from elastic_core.agent import WorkerState
from elastic_core.builtin import MemoryStore
from elastic_core.errors import RendezvousClosedError, SignalException


def test_nodes_with_a_plain_handler_agree_through_the_store(make_node, scripted_handler):
    """Their ranks come from introductions, and the restart count is the highest of the nodes'."""
    stores = [MemoryStore(), MemoryStore()]

    def node(rank, size, first):
        handler = scripted_handler()
        for call, store in enumerate(stores, 1):
            handler.script[call] = lambda store=store: handler.round_of_one(store=store, rank=rank, world_size=2)
        handler.waiting = [0] if first is fail else [1]
        return make_node(in_turn(first, succeed), handler, size=size, monitor_interval=0.01, max_restarts=2)

    nodes = [node(0, 1, fail), node(1, 3, lambda plan, workers: None)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda node: node.run(), nodes))
    assert [result.state for result in results] == [WorkerState.SUCCEEDED] * 2
    assert [[plan.restart_count for plan in node.workers.plans] for node in nodes] == [[0, 1], [0, 1]]
    assert [[ranks.world for ranks in node.workers.plans[1].ranks] for node in nodes] == [[0], [1, 2, 3]]
    assert [node.workers.plans[1].world_size for node in nodes] == [4, 4]
    assert [node.handler.closed for node in nodes] == [True, True]


def test_closed_plain_handler_keeps_the_failure(make_node, scripted_handler):
    def refuse():
        raise RendezvousClosedError("closed by node2")

    node = make_node(fail, scripted_handler({2: refuse}), max_restarts=3)
    result = node.run()
    assert (result.is_failed(), list(result.failures)) == (True, [0])
    assert node.finished.reason == "closed by node2"


def test_plain_handler_has_no_exit_barrier(make_node):
    node = make_node(succeed, exit_barrier_timeout=0.0)
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.finished.reason == "every worker succeeded"
    assert node.handler.closed


def test_node_that_has_left_joins_no_round_when_its_poll_ends(make_node, scripted_handler):
    """A worker fails while the poll hangs, and a signal ends the wait for the next round."""

    def hang():
        polling.set()
        handler.released.wait()
        return 0

    def fail_then_stop(plan, workers):
        def stop():
            polling.wait()
            fail(plan, workers)
            eventually(lambda: workers.running() == [])
            node.agent.receive_signal(signal.SIGTERM)

        threading.Thread(target=stop).start()

    polling, handler = threading.Event(), scripted_handler()
    handler.num_nodes_waiting = hang
    node = make_node(fail_then_stop, handler, monitor_interval=0.001, max_restarts=3)
    with pytest.raises(SignalException):
        node.run()
    handler.released.set()
    assert not any(thread.name == "rendezvous" and joins(thread) for thread in threading.enumerate())
    assert handler.calls == 1


def joins(thread):
    """Wait for the thread; whether it still runs."""
    thread.join(60)
    return thread.is_alive()


def test_job_ends_although_closing_hangs(make_node, scripted_handler):
    handler = scripted_handler()
    handler.set_closed = handler.released.wait
    node = make_node(succeed, handler)
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.finished.reason == "every worker succeeded; the other nodes could not be notified within 2 s"

"""The end of a job with a handler of rounds, and of one node's part in it; and a node that leaves."""

from __future__ import annotations

import pytest
from round_of_two import (
    DRAINED,
    FAILED_ELSEWHERE,
    FOR_EVER,
    NODE_CAME,
    PEER_FAILED,
    TERM,
    THEIRS,
    WELL,
    Ordered,
    fail,
    pair_then,
    succeed,
)

from elastic_core import report
from elastic_core.agent import WorkerState
from elastic_core.errors import (
    ConfigurationError,
    DrainedError,
    ExitCode,
    RendezvousClosedError,
    RendezvousGracefulExitError,
    SignalException,
)


def test_a_job_that_failed_elsewhere(make):
    node = make(lambda plan, workers: node.handler.give(FAILED_ELSEWHERE))
    with pytest.raises(RendezvousClosedError) as closed:
        node.run()
    assert str(closed.value) == "the job was closed by node2: rank 9 on node2; no restart left"
    assert closed.value.failures == THEIRS
    assert report.exit_code_of(closed.value) == ExitCode.CLOSED_BY_ANOTHER_NODE == 5
    assert "Root cause: rank 9 (local rank 0, pid 77) on node2" in report.as_text(closed.value)
    assert node.order == ["SIGTERM", "SIGCONT"]
    assert (node.finished.state, node.finished.reason) == ("FAILED", f"RendezvousClosedError: {closed.value}")


def test_a_job_that_failed_elsewhere_while_this_node_takes_part_again(make):
    def refuse():
        node.handler.give(FAILED_ELSEWHERE)
        raise RendezvousClosedError("closed by node2")

    node = make(lambda plan, workers: node.handler.give(PEER_FAILED), pair_then(refuse))
    with pytest.raises(RendezvousClosedError, match="closed by node2") as closed:
        node.run()
    assert closed.value.failures == THEIRS


def test_a_job_that_has_failed_before_this_node_came(make):
    def refuse():
        node.handler.give(FAILED_ELSEWHERE)
        raise RendezvousClosedError("closed by node2")

    node = make(succeed, [refuse])
    with pytest.raises(RendezvousClosedError) as closed:
        node.run()
    assert closed.value.failures == THEIRS


def test_a_job_that_ends_well_elsewhere_has_not_for_a_node_whose_workers_run(make):
    node = make(lambda plan, workers: node.handler.give(WELL))
    with pytest.raises(RendezvousClosedError, match="closed by node2: all workers succeeded; this node's workers"):
        node.run()
    assert node.order == ["SIGTERM", "SIGCONT"]
    assert node.finished.state == "FAILED"


def closed_well():
    error = RendezvousClosedError("closed by node2")
    error.succeeded = True
    raise error


def test_nor_for_one_whose_workers_were_stopped_for_the_next_round(make):
    node = make(lambda plan, workers: node.handler.give(NODE_CAME), pair_then(closed_well))
    with pytest.raises(RendezvousClosedError, match="closed by node2"):
        node.run()


def test_it_has_for_one_whose_workers_had_succeeded_before_the_others_needed_it_again(make):
    node = make(succeed, pair_then(closed_well), on_success=lambda rounds: rounds.give(NODE_CAME))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.finished.reason == "closed by node2"


def test_a_spare_that_was_not_needed(make):
    node = make(succeed, [RendezvousGracefulExitError("the job ended well without this node")])
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.handler.calls == [("next_rendezvous",)]


def test_nor_is_one_that_is_not_needed_any_more_if_its_workers_were_stopped_or_failed(make):
    node = make(lambda plan, workers: node.handler.give(NODE_CAME), pair_then(not_needed))
    with pytest.raises(RendezvousClosedError, match="ended well without this node"):
        node.run()
    assert make(fail, pair_then(not_needed)).run().state is WorkerState.FAILED


def not_needed():
    raise RendezvousGracefulExitError("the job ended well without this node")


def test_a_node_that_is_drained_leaves_and_says_that_its_workers_were_stopped(make):
    node = make(lambda plan, workers: node.handler.give(DRAINED))
    with pytest.raises(DrainedError, match="somebody asked for it"):
        node.run()
    assert node.order == ["leave", "SIGTERM", "SIGCONT"]
    assert node.handler.named("leave") == [("drained: somebody asked for it", 2.0)]
    assert (node.finished.state, node.finished.reason) == ("STOPPED", "drained: somebody asked for it")


@pytest.mark.parametrize("can_tell", [True, False])
def test_a_signal_is_told_before_the_workers_are_stopped(can_tell, make):
    node = make(lambda plan, workers: node.agent.receive_signal(TERM), can_tell=can_tell)
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave", "SIGTERM", "SIGCONT"]
    assert node.handler.named("leave") == [("received SIGTERM", 2.0)]
    assert node.handler.named("set_closed") == []


def test_a_signal_that_the_workers_got_too_is_no_failure(make):
    def on_start(plan, workers):
        node.agent.receive_signal(TERM)
        for rank in workers.running():
            workers.end(rank, -15)

    node = make(on_start)
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave"]


def test_a_signal_while_the_node_joins(make):
    def join():
        node.agent.receive_signal(TERM)
        node.handler.released.wait(FOR_EVER)

    node = make(succeed, [join])
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave"]


def test_an_agent_that_breaks_tells_the_others_before_its_workers_go(make):
    def on_start(plan, workers):
        raise OSError("no room on the disk")

    node = make(on_start)
    with pytest.raises(OSError, match="no room"):
        node.run()
    assert node.order[0] == "leave"
    assert node.handler.named("leave") == [("its agent ends: OSError: no room on the disk", 2.0)]


def test_an_interrupt_from_the_keyboard_is_told_too(make):
    class Interrupted(Ordered):
        def reap(self):
            if not self.signals:
                raise KeyboardInterrupt
            return super().reap()

    node = make(lambda plan, workers: node.handler.give(None), workers=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        node.run()
    assert node.order == ["leave", "SIGTERM", "SIGCONT"]
    assert node.handler.named("leave") == [("its agent ends: interrupted from the keyboard", 2.0)]


def test_workers_that_cannot_start_are_told(make):
    def on_start(plan, workers):
        raise ConfigurationError

    node = make(on_start)
    with pytest.raises(ConfigurationError):
        node.run()
    assert node.order[0] == "leave"

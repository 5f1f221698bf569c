"""The end of a job, or of one node's part in it, with a round handler."""

from __future__ import annotations

import pytest
from round_of_two import (
    DRAINED,
    FAILED_ELSEWHERE,
    FOREVER,
    JOB_DONE,
    NODE_JOINED,
    PEER_FAILED,
    TERM,
    THEIRS,
    Ordered,
    fail,
    pair_then,
    succeed,
)

from elastic_core import report
from elastic_core.agent import WorkerState
from elastic_core.errors import (
    DrainedError,
    ExitCode,
    PreemptedError,
    RendezvousClosedError,
    RendezvousGracefulExitError,
    SignalException,
)
from elastic_core.interfaces.node import Notice


def test_job_failure_elsewhere_stops_workers(make):
    node = make(lambda plan, workers: node.handler.give(FAILED_ELSEWHERE))
    with pytest.raises(RendezvousClosedError) as closed:
        node.run()
    assert str(closed.value) == "the job was closed by node2: rank 9 on node2; no restart left"
    assert closed.value.failures == THEIRS
    assert report.exit_code_of(closed.value) == ExitCode.CLOSED_BY_ANOTHER_NODE == 5
    assert "Root cause: rank 9 (local rank 0, pid 77) on node2" in report.as_text(closed.value)
    assert node.order == ["SIGTERM", "SIGCONT"]
    assert (node.finished.state, node.finished.reason) == ("FAILED", str(closed.value))


@pytest.mark.parametrize("rejoins", [True, False])
def test_job_failure_elsewhere_is_raised_while_joining(make, rejoins):
    def refuse():
        node.handler.give(FAILED_ELSEWHERE)
        raise RendezvousClosedError("closed by node2")

    rounds = pair_then(refuse) if rejoins else [refuse]
    node = make(lambda plan, workers: node.handler.give(PEER_FAILED), rounds)
    with pytest.raises(RendezvousClosedError, match="closed by node2") as closed:
        node.run()
    assert closed.value.failures == THEIRS


def test_job_success_elsewhere_fails_a_node_with_running_workers(make):
    node = make(lambda plan, workers: node.handler.give(JOB_DONE))
    with pytest.raises(RendezvousClosedError, match="closed by node2: all workers succeeded; this node's workers"):
        node.run()
    assert node.order == ["SIGTERM", "SIGCONT"]
    assert node.finished.state == "FAILED"


def closed_well():
    error = RendezvousClosedError("closed by node2")
    error.succeeded = True
    raise error


def test_job_success_elsewhere_fails_a_node_with_stopped_workers(make):
    node = make(lambda plan, workers: node.handler.give(NODE_JOINED), pair_then(closed_well))
    with pytest.raises(RendezvousClosedError, match="closed by node2"):
        node.run()


def test_job_success_while_rejoining_keeps_earlier_success(make):
    node = make(succeed, pair_then(closed_well), on_success=lambda rounds: rounds.give(NODE_JOINED))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.finished.reason == "closed by node2"


def test_unneeded_spare_succeeds(make):
    node = make(succeed, [RendezvousGracefulExitError("the job ended well without this node")])
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.handler.calls == [("next_rendezvous",)]


def test_unneeded_node_fails_if_its_workers_did_not_succeed(make):
    node = make(lambda plan, workers: node.handler.give(NODE_JOINED), pair_then(not_needed))
    with pytest.raises(RendezvousClosedError, match="ended well without this node"):
        node.run()
    assert make(fail, pair_then(not_needed)).run().state is WorkerState.FAILED


def not_needed():
    raise RendezvousGracefulExitError("the job ended well without this node")


def test_drained_node_leaves_and_stops_its_workers(make):
    node = make(lambda plan, workers: node.handler.give(DRAINED))
    with pytest.raises(DrainedError, match="requested by the operator"):
        node.run()
    assert node.order == ["leave", "SIGTERM", "SIGCONT"]
    assert node.handler.calls_to("leave") == [("drained: requested by the operator", 2.0)]
    assert (node.finished.state, node.finished.reason) == ("STOPPED", "drained: requested by the operator")


@pytest.mark.parametrize("can_announce", [True, False])
def test_signal_is_announced_before_workers_stop(can_announce, make):
    node = make(lambda plan, workers: node.agent.receive_signal(TERM), can_announce=can_announce)
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave", "SIGTERM", "SIGCONT"]
    assert node.handler.calls_to("leave") == [("received SIGTERM", 2.0)]
    assert node.handler.calls_to("set_closed") == []


def test_workers_stopped_by_the_same_signal_have_not_failed(make):
    def on_start(plan, workers):
        node.agent.receive_signal(TERM)
        for rank in workers.running():
            workers.end(rank, -15)

    node = make(on_start)
    with pytest.raises(SignalException) as stopped:
        node.run()
    assert node.order == ["leave"]
    assert not stopped.value.failures


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda agent: agent.receive_signal(TERM), SignalException),
        (lambda agent: agent.receive_notice("cloud", Notice("reclaimed")), PreemptedError),
    ],
    ids=["signal", "notice"],
)
def test_request_while_survivors_stop_keeps_the_failures(make, ask, error):
    """The agent handles the request while it waits for the survivor, which ignores SIGTERM."""

    class Interrupted(Ordered):
        def send_signal(self, signum):
            if signum == TERM:
                ask(node.agent)
            super().send_signal(signum)

    node = make(fail, workers=Interrupted, ignore_signals=[1], shutdown_timeout=0.3)
    with pytest.raises(error) as stopped:
        node.run()
    assert list(stopped.value.failures) == [0]


def test_signal_while_joining_is_announced(make):
    def join():
        node.agent.receive_signal(TERM)
        node.handler.released.wait(FOREVER)

    node = make(succeed, [join])
    with pytest.raises(SignalException):
        node.run()
    assert node.order == ["leave"]


def test_agent_error_is_announced_before_workers_stop(make):
    def on_start(plan, workers):
        raise OSError("no space on the disk")

    node = make(on_start)
    with pytest.raises(OSError, match="no space"):
        node.run()
    assert node.order[0] == "leave"
    assert node.handler.calls_to("leave") == [("its agent is exiting: OSError: no space on the disk", 2.0)]


def test_keyboard_interrupt_is_announced(make):
    class Interrupted(Ordered):
        def reap(self):
            if not self.signals:
                raise KeyboardInterrupt
            return super().reap()

    node = make(lambda plan, workers: node.handler.give(None), workers=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        node.run()
    assert node.order == ["leave", "SIGTERM", "SIGCONT"]
    assert node.handler.calls_to("leave") == [("its agent is exiting: interrupted from the keyboard", 2.0)]

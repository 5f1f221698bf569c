"""The local agent with a handler of rounds: ends of rounds, failures that are told, leaving, the exit barrier."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from elastic_core import log, report
from elastic_core.agent import WorkerState
from elastic_core.builtin.memory_store import MemoryStore
from elastic_core.clock import Instant, SystemClock
from elastic_core.errors import (
    ConfigurationError,
    ExitCode,
    ProcessFailure,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    SignalException,
    UnkillableWorkersError,
)
from elastic_core.interfaces.handler import Outcome, Verdict
from elastic_core.interfaces.observer import RestartDecided
from elastic_core.interfaces.workers import WorkerRanks
from elastic_core.testing import FakeClock, FakeRounds, FakeWorkers, round_info

TERM, CONT = signal.SIGTERM, signal.SIGCONT
FOR_EVER = 3600.0
ELSEWHERE = ProcessFailure(0, 77, -9, global_rank=9, node="node2", round=1, reason="killed by SIGKILL", message="boom")
THEIRS = {9: ELSEWHERE}
PEER_FAILED = Verdict(Outcome.RESTART, "rank 9 on node2: killed by SIGKILL", failed=True, failures=THEIRS)
NODE_CAME = Verdict(Outcome.RESTART, "node5 has come")
FAILED_ELSEWHERE = Verdict(Outcome.CLOSED, "rank 9 on node2; no restart left", by="node2", failures=THEIRS)
WELL = Verdict(Outcome.CLOSED, "all workers succeeded", succeeded=True, by="node2")
FENCED = Verdict(Outcome.FENCED, "the store has not answered for 30 s")
DRAINED = Verdict(Outcome.DRAINED, "somebody asked for it")
PAIR = (("trainer", 2), ("trainer", 2))


def two_nodes(number=1, **fields):
    return round_info(number, PAIR, **fields)


def pair_then(*steps):
    return [two_nodes(), *steps]


def succeed(plan, workers):
    for rank in workers.running():
        workers.end(rank, 0)


def fail(plan, workers):
    workers.end(0, 3)


def then(*scripts):
    """Workers that do in their first, second, ... round what these functions say; the last one stays."""
    left = list(scripts)
    return lambda plan, workers: (left.pop(0) if len(left) > 1 else left[0])(plan, workers)


def decided(node):
    return [fact for fact in node.observer.facts if isinstance(fact, RestartDecided)]


def in_order(node, *names):
    """The names of the calls and of the signals that the workers got, of those that are asked for."""
    return [name for name in node.order if name in names]


class Ordered(FakeWorkers):
    """Workers that put what is done to them into one list with what the handler is told."""

    def __init__(self, on_start, order, **kwargs):
        super().__init__(on_start, **kwargs)
        self.order = order

    def send_signal(self, signum):
        self.order.append(signal.Signals(signum).name)
        super().send_signal(signum)


class OrderedRounds(FakeRounds):
    def __init__(self, order, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.order = order
        self.asked = threading.Event()

    def progress(self):
        self.asked.set()
        return super().progress()

    def report_failure(self, failures):
        self.order.append("report_failure")
        super().report_failure(failures)

    def leave(self, reason, timeout):
        self.order.append("leave")
        return super().leave(reason, timeout)


@pytest.fixture
def make(make_node):
    """A node of a round of two, with a handler of rounds. Fields of `FakeRounds`, `FakeWorkers` and `WorkerSpec`."""
    made = []

    def make(on_start, rounds=None, on_failure=None, on_success=None, can_tell=True, workers=Ordered, **kwargs):
        order = []
        handler = OrderedRounds(order, pair_then() if rounds is None else rounds, on_failure, on_success, can_tell)
        made.append(handler)
        fakes = {name: kwargs.pop(name) for name in ("deaf", "immortal") if name in kwargs}
        node = make_node(handler=handler, workers=workers(on_start, order, **fakes), **kwargs)
        node.order = order
        return node

    yield make
    for handler in made:
        handler.shutdown()


@pytest.fixture
def said(capsys):
    """What the log says so far, from the level info on."""
    log.configure(level="info")
    yield lambda: capsys.readouterr().err
    log.configure(level="warning")


# -- rounds


def test_number_restart_count_and_ranks_come_from_the_round(make):
    formed = round_info(7, [("reader", 3), ("trainer", 1), ("trainer", 2)], rank=2, restart_count=4)
    node = make(succeed, [formed], on_success=lambda rounds: rounds.give(WELL), max_restarts=9)
    assert node.run().state is WorkerState.SUCCEEDED
    (plan,) = node.workers.plans
    assert (plan.round, plan.restart_count, plan.max_restarts) == (7, 4, 9)
    assert (plan.group_rank, plan.group_world_size, plan.world_size, plan.role_world_size) == (2, 3, 6, 3)
    assert plan.ranks == (WorkerRanks(0, 4, 1), WorkerRanks(1, 5, 2))
    assert (node.finished.restart_count, node.observer.facts[0].round) == (4, 7)
    assert node.handler.named("num_nodes_waiting") == node.handler.named("set_closed") == []


def test_a_peer_that_fails_ends_the_round_here_too_and_the_count_is_that_of_the_round(make):
    node = make(
        then(lambda plan, workers: node.handler.give(PEER_FAILED), succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_success=lambda rounds: rounds.give(WELL),
        max_restarts=3,
    )
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.workers.signals == [TERM, CONT]
    assert [plan.restart_count for plan in node.workers.plans] == [0, 1]
    assert decided(node) == [RestartDecided("job", 1, "failure", "rank 9 on node2: killed by SIGKILL", 1, 3)]
    assert "WorkerFailed" not in node.facts
    assert node.handler.named("report_failure") == []


def test_a_node_that_comes_ends_the_round_for_free(make):
    node = make(
        then(lambda plan, workers: node.handler.give(NODE_CAME), succeed),
        on_success=lambda rounds: rounds.give(WELL),
        max_restarts=0,
    )
    node.run()
    assert decided(node) == [RestartDecided("job", 1, "membership", "node5 has come", 0, 0)]
    assert [plan.round for plan in node.workers.plans] == [1, 2]


def test_news_without_a_verdict_change_nothing(make):
    def on_start(plan, workers):
        node.handler.give(None)
        threading.Timer(0.05, succeed, [plan, workers]).start()

    node = make(on_start, on_success=lambda rounds: rounds.give(WELL))
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.workers.plans) == 1


def let_time_pass(node, clock):
    """Until the agent asks who is missing."""
    for _ in range(600):
        clock.advance(4.0)
        node.handler.give(None)  # any news make the agent look at the clock
        if node.handler.asked.wait(0.05):
            return


def test_waiting_is_told_with_those_that_are_missing(make, said):
    clock = FakeClock()
    node = make(
        succeed,
        [lambda: let_time_pass(node, clock) or two_nodes()],
        on_success=lambda rounds: rounds.give(WELL),
        clock=clock,
    )
    node.handler.missing = "1 of 2 joined, missing: node1"
    node.run()
    lines = said()
    assert 'still waiting: waiting_for="other nodes to join" seconds=' in lines
    assert 'progress="1 of 2 joined, missing: node1"' in lines


# -- failures


def test_the_others_learn_of_a_failure_before_the_workers_are_stopped(make):
    node = make(fail, pair_then(RendezvousClosedError("no restart left")))
    node.run()
    assert node.order == ["report_failure", "SIGTERM", "SIGCONT", "report_failure"]
    early, late = (failures for (failures,) in node.handler.named("report_failure"))
    assert [(f.reason, f.node, f.round, f.exitcode) for f in early.values()] == [("exit code 3", "node7", 1, 3)]
    assert list(early) == list(late) == [0]


def test_the_second_report_has_all_that_failed(make):
    class Stubborn(Ordered):
        """One that answers SIGTERM with a failure of its own."""

        def send_signal(self, signum):
            if signum == TERM and 1 in self.running():
                self.end(1, 7)
            super().send_signal(signum)

    node = make(fail, pair_then(RendezvousClosedError("no restart left")), workers=Stubborn)
    node.run()
    early, late = (failures for (failures,) in node.handler.named("report_failure"))
    assert (list(early), list(late)) == ([0], [0, 1])


def test_a_failure_that_the_job_forgives(make):
    node = make(
        then(fail, succeed),
        pair_then(two_nodes(2, restart_count=3)),
        on_success=lambda rounds: rounds.give(WELL),
        max_restarts=0,  # of this node's own, which does not count
    )
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.facts == [
        "RoundFormed",
        "WorkersStarted",
        "WorkerFailed",
        "RestartDecided",
        "RoundFormed",
        "WorkersStarted",
        "AgentFinished",
    ]
    assert decided(node) == [RestartDecided("job", 1, "failure", "rank 0: exit code 3", 3, 0)]


def test_the_verdict_says_what_made_the_round_end(make):
    node = make(
        then(fail, succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_failure=lambda rounds: rounds.give(PEER_FAILED),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    assert decided(node) == [RestartDecided("job", 1, "failure", PEER_FAILED.reason, 1, 3)]


@pytest.mark.parametrize("own_failure", [True, False])
def test_a_hang_on_another_node_is_told_with_its_stack(make, said, own_failure):
    hung = replace(ELSEWHERE, reason="hang: no progress for 30 s", stack="Current thread:\n  in step")
    verdict = Verdict(Outcome.RESTART, "rank 9 on node2: hang: no progress", failed=True, failures={9: hung})
    node = make(
        then(fail if own_failure else lambda plan, workers: node.handler.give(verdict), succeed),
        pair_then(two_nodes(2, restart_count=1)),
        on_failure=lambda rounds: rounds.give(verdict),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    line = 'worker hangs: rank=9 node=node2 reason="hang: no progress for 30 s"'
    assert said().count(f"{line}\n    Current thread:\n      in step\n") == 1
    assert [fact.cause for fact in decided(node)] == ["hang"]
    assert "node2" not in {fact.failure.node for fact in node.observer.facts if hasattr(fact, "failure")}


def test_a_failure_that_followed_from_a_node_that_left_costs_nothing(make):
    node = make(
        then(fail, succeed),
        on_failure=lambda rounds: rounds.give(NODE_CAME),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    assert [(fact.cause, fact.restart_count) for fact in decided(node)] == [("membership", 0)]


def test_when_the_budget_of_the_job_is_used_up_the_node_that_failed_says_so(make, said):
    over = RendezvousClosedError("rank 0 on node7: exit code 3; all 3 restarts are used (--max-restarts)")
    node = make(fail, pair_then(over))
    result = node.run()
    assert result.is_failed()
    assert {rank: failure.reason for rank, failure in result.failures.items()} == {0: "exit code 3"}
    assert decided(node) == []
    assert (node.finished.state, node.finished.reason) == ("FAILED", str(over))
    assert 'no restart: reason="rank 0 on node7' in said()
    assert node.handler.named("leave") == []


def test_a_job_that_is_closed_while_the_failed_workers_are_stopped(make):
    closed = Verdict(Outcome.CLOSED, "rank 0 on node7: exit code 3; no restart is allowed", by="node7")
    node = make(fail, on_failure=lambda rounds: rounds.give(closed))
    result = node.run()
    assert (result.is_failed(), list(result.failures)) == (True, [0])
    assert node.finished.reason == "the job was closed by node7: rank 0 on node7: exit code 3; no restart is allowed"
    assert decided(node) == []
    assert node.handler.named("set_closed") == []


def test_of_the_failures_here_and_elsewhere_the_first_is_the_one_that_the_job_names(make):
    node = make(fail, on_failure=lambda rounds: rounds.give(FAILED_ELSEWHERE))
    result = node.run()
    assert {rank: failure.caused_by for rank, failure in result.failures.items()} == {9: None, 0: 9}


def test_no_failure_is_hidden_by_what_goes_wrong_in_the_next_rendezvous(make):
    node = make(fail, pair_then(RendezvousConnectionError("the store is gone")))
    with pytest.raises(RendezvousConnectionError) as left:
        node.run()
    assert list(left.value.failures) == [0]


def test_workers_that_would_not_die_are_reported_too(make):
    node = make(fail, immortal=[1], shutdown_timeout=0.0, kill_timeout=0.05)
    with pytest.raises(UnkillableWorkersError):
        node.run()
    assert in_order(node, "report_failure", "leave") == ["report_failure", "report_failure", "leave"]


# -- the end of the job, and of this node's part in it


def test_a_job_that_failed_elsewhere(make):
    node = make(lambda plan, workers: node.handler.give(FAILED_ELSEWHERE))
    with pytest.raises(RendezvousClosedError) as closed:
        node.run()
    assert str(closed.value) == "the job was closed by node2: rank 9 on node2; no restart left"
    assert closed.value.failures == THEIRS
    assert report.exit_code_of(closed.value) == ExitCode.CLOSED_BY_ANOTHER_NODE == 5
    assert "First failure: rank 9 (local rank 0, pid 77) on node2" in report.as_text(closed.value)
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


def test_a_job_that_ends_well_elsewhere(make):
    node = make(lambda plan, workers: node.handler.give(WELL))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["SIGTERM", "SIGCONT"]
    assert node.finished.reason == "the job was closed by node2: all workers succeeded"


def test_a_job_that_ends_well_while_this_node_takes_part_again(make):
    def refuse():
        node.handler.give(WELL)
        raise RendezvousClosedError("closed by node2")

    node = make(lambda plan, workers: node.handler.give(NODE_CAME), pair_then(refuse))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.finished.reason == "the job was closed by node2: all workers succeeded"


def test_a_spare_that_was_not_needed(make):
    node = make(succeed, [RendezvousGracefulExitError("the job ended well without this node")])
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.handler.calls == [("next_rendezvous",)]


def test_a_node_that_is_cut_off_stops_its_workers(make):
    node = make(lambda plan, workers: node.handler.give(FENCED))
    with pytest.raises(RendezvousConnectionError, match="the store has not answered for 30 s") as cut_off:
        node.run()
    assert report.exit_code_of(cut_off.value) == ExitCode.STORE_UNREACHABLE == 4
    assert node.order == ["SIGTERM", "SIGCONT"]  # and nobody is told, for nobody can be


class Silent(FakeRounds):
    """A store that hangs sends no news: the node is cut off at the deadline, and nothing but the clock tells."""

    def verdict(self):
        return FENCED if self.deadline and SystemClock().now() >= self.deadline else None


def test_the_handler_is_asked_again_when_it_wants_to_be(make_node):
    def on_start(plan, workers):
        handler.deadline = Instant(SystemClock().now() + 0.1)

    handler = Silent(pair_then())
    with pytest.raises(RendezvousConnectionError):
        make_node(on_start, handler).run()


def test_a_node_that_is_drained_leaves_and_ends_well(make):
    node = make(lambda plan, workers: node.handler.give(DRAINED))
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.order == ["leave", "SIGTERM", "SIGCONT"]
    assert node.handler.named("leave") == [("drained: somebody asked for it", 2.0)]
    assert (node.finished.state, node.finished.reason) == ("SUCCEEDED", "drained: somebody asked for it")


# -- leaving


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


# -- the exit barrier


def test_a_node_that_is_done_waits_for_the_others(make):
    ready = threading.Event()
    node = make(succeed, on_success=lambda rounds: ready.set())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(node.run)
        assert ready.wait(30)
        assert not running.done()
        node.handler.give(WELL)
        result = running.result(30)
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
    with pytest.raises(RendezvousClosedError, match="the workers of this node had succeeded") as closed:
        node.run()
    assert closed.value.failures == THEIRS
    assert node.order == []


def test_the_wait_for_others_has_an_end(make, capsys):
    clock = FakeClock()
    node = make(succeed, on_success=lambda rounds: clock.advance(300.0), clock=clock)
    assert node.run().state is WorkerState.SUCCEEDED
    why = "every worker succeeded; those of others have not in time (exit barrier)"
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
    thread.join(30)
    lines = said()
    assert 'still waiting: waiting_for="the workers of other nodes to succeed" seconds=' in lines
    assert 'progress="1 of 2 succeeded, missing: node1"' in lines


def test_no_barrier_after_a_failure(make):
    node = make(fail, pair_then(RendezvousClosedError("no restart left")))
    node.run()
    assert node.handler.named("report_success") == []


# -- handlers that were written for torchrun


def test_two_nodes_whose_handler_does_not_say_who_takes_part(make_node, scripted_handler):
    """Their ranks come from a roll call, and the restart count is the highest that one of them knows."""
    stores = [MemoryStore(), MemoryStore()]

    def node(rank, size, first):
        handler = scripted_handler()
        for call, store in enumerate(stores, 1):
            handler.script[call] = lambda store=store: handler.round_of_one(store=store, rank=rank, world_size=2)
        handler.waiting = [0] if first is fail else [1]
        return make_node(then(first, succeed), handler, size=size, monitor_interval=0.01, max_restarts=2)

    nodes = [node(0, 1, fail), node(1, 3, lambda plan, workers: None)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda node: node.run(), nodes))
    assert [result.state for result in results] == [WorkerState.SUCCEEDED] * 2
    assert [[plan.restart_count for plan in node.workers.plans] for node in nodes] == [[0, 1], [0, 1]]
    assert [[ranks.world for ranks in node.workers.plans[1].ranks] for node in nodes] == [[0], [1, 2, 3]]
    assert [node.workers.plans[1].world_size for node in nodes] == [4, 4]
    assert [node.handler.closed for node in nodes] == [True, True]


def test_a_plain_handler_that_closes_does_not_hide_the_failure(make_node, scripted_handler):
    def refuse():
        raise RendezvousClosedError("closed by node2")

    node = make_node(fail, scripted_handler({2: refuse}), max_restarts=3)
    result = node.run()
    assert (result.is_failed(), list(result.failures)) == (True, [0])
    assert node.finished.reason == "closed by node2"


def test_a_plain_handler_has_no_barrier(make_node):
    node = make_node(succeed, exit_barrier_timeout=0.0)
    assert node.run().state is WorkerState.SUCCEEDED
    assert node.finished.reason == "every worker succeeded"
    assert node.handler.closed

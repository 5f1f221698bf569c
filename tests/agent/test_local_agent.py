"""The local agent with fake workers: rounds, restarts, facts, plans, timers."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from agent_fakes import FakeWorkers
from elastic_testing import FakeClock, eventually
from round_of_two import Ordered, fail, in_turn, succeed

from elastic_core.agent import ProcessAgent, RunResult, WorkerState
from elastic_core.agent.hang import HangPolicy
from elastic_core.errors import ConfigurationError, Problem, ProcessFailure
from elastic_core.interfaces.node import Round
from elastic_core.interfaces.observer import AgentFinished, RestartDecided, RoundFormed, WorkersStarted
from elastic_core.interfaces.workers import Expiry, WorkerRanks


def fail_until(restart_count, *ranks):
    """A worker script: `ranks` fail until the group has been restarted so many times."""

    def on_start(plan, workers):
        if plan.restart_count == restart_count:
            succeed(plan, workers)
        else:
            for rank in ranks:
                workers.end(rank, 3)

    return on_start


def test_run_succeeds_when_workers_end_at_different_times(make_node):
    def end_both(plan, workers):
        workers.end(0, 0)
        threading.Timer(0.05, workers.end, [1, 0]).start()

    assert make_node(end_both).run().state is WorkerState.SUCCEEDED


def test_failure_beyond_the_budget_is_final(make_node):
    node = make_node(fail_until(9, 1), max_restarts=1)
    result = node.run()
    assert result.is_failed()
    assert {rank: (f.reason, f.round, f.node) for rank, f in result.failures.items()} == {
        1: ("exit code 3", 2, "node7")
    }
    assert node.handler.closed


def test_incurable_failure_is_final(make_node):
    class CannotRun(FakeWorkers):
        def failures(self):
            return {rank: replace(failure, curable=False) for rank, failure in super().failures().items()}

    node = make_node(workers=CannotRun(fail_until(9, 0)), max_restarts=5)
    assert node.run().is_failed()
    assert len(node.workers.plans) == 1
    assert "a restart would not help" in node.finished.reason


def test_round_plan_has_all_fields(make_node):
    node = make_node(succeed, max_restarts=4, contribute=lambda plan: {"ROUND": str(plan.round)})
    node.run()
    (plan,) = node.workers.plans
    assert (plan.run_id, plan.node, plan.role, plan.round) == ("job", "node7", "trainer", 1)
    assert (plan.group_rank, plan.group_world_size, plan.world_size, plan.role_world_size) == (0, 1, 2, 2)
    assert (plan.master_addr, plan.master_port, plan.use_agent_store) == ("10.0.0.7", 29001, False)
    assert (plan.restart_count, plan.max_restarts) == (0, 4)
    assert plan.ranks == (WorkerRanks(0, 0, 0), WorkerRanks(1, 1, 1))
    assert plan.contributed == {"ROUND": "1"}


def test_facts_are_reported_in_order(make_node):
    node = make_node(fail_until(1, 0, 1), max_restarts=1, clock=FakeClock())
    node.run()
    assert node.facts == [
        "RoundFormed",
        "WorkersStarted",
        "WorkerFailed",
        "WorkerFailed",
        "RestartDecided",
        "RoundFormed",
        "WorkersStarted",
        "AgentFinished",
    ]
    formed, started, first, second, decided, *_, finished = node.observer.facts
    assert formed == RoundFormed("job", 1, 0, 1, 0.0, Round(1, ()))
    assert started == WorkersStarted("job", 1, {0: 1000, 1: 1001}, {0: 0, 1: 1})
    assert (first.failure.global_rank, first.failure.caused_by) == (0, None)
    assert (second.failure.global_rank, second.failure.caused_by) == (1, 0)
    assert decided == RestartDecided("job", 1, "failure", "rank 0: exit code 3; restart 1 of 1", 1, 1)
    assert finished == AgentFinished("job", "SUCCEEDED", "every worker succeeded", 1)


def test_join_time_is_reported(make_node, scripted_handler):
    clock = FakeClock()
    node = make_node(succeed, scripted_handler({1: lambda: clock.advance(2.0) and None}), clock=clock)
    node.run()
    assert node.observer.facts[0].seconds == 2.0


def test_expired_timer_kills_its_worker_for_a_hang(make_node):
    def on_start(plan, workers):
        if plan.restart_count == 0:
            node.agent.timer_expired(Expiry(1001, "step"))
        else:
            succeed(plan, workers)

    node = make_node(on_start, max_restarts=1)
    assert node.run().state is WorkerState.SUCCEEDED
    failures = [fact.failure for fact in node.observer.facts if hasattr(fact, "failure")]
    assert [(f.global_rank, f.exitcode) for f in failures] == [(1, -9)]
    assert failures[0].reason == "hang: the watchdog timer 'step' was not released in time"
    assert node.workers.signals == [15, 18]  # the other worker gets SIGTERM, as after any failure


def test_expired_timer_of_an_unknown_process_is_ignored(make_node):
    def on_start(plan, workers):
        node.agent.timer_expired(Expiry(999_999, "step"))
        threading.Timer(0.05, succeed, [plan, workers]).start()

    node = make_node(on_start)
    assert node.run().state is WorkerState.SUCCEEDED


def test_failed_worker_start_ends_the_run(make_node):
    def refuse(plan, workers):
        raise ConfigurationError(Problem("entry point", "cannot be run"))

    node = make_node(refuse, max_restarts=3)
    with pytest.raises(ConfigurationError):
        node.run()
    assert node.facts == ["RoundFormed", "AgentFinished"]
    assert node.finished.state == "FAILED"


def test_contribution_error_ends_the_run_without_workers(make_node):
    def contribute(plan):
        raise ValueError("no variables today")

    node = make_node(succeed, contribute=contribute)
    with pytest.raises(ValueError, match="no variables today"):
        node.run()
    assert node.workers.plans == []


def test_waiting_agent_is_alive(make_node, scripted_handler):
    clock, seen = FakeClock(), []

    def join():
        clock.advance(100.0)
        # The agent's thread, which started this one, is about to wait.
        seen.append(eventually(lambda: node.agent.alive_at() == clock.timestamp(), 30))

    node = make_node(succeed, scripted_handler({1: join}), clock=clock)
    begun = node.agent.alive_at()
    clock.advance(50.0)
    assert node.agent.alive_at() == begun  # no iteration since
    node.run()
    assert seen == [True]


def test_run_leaves_no_thread(make_node):
    before = threading.active_count()
    node = make_node(fail_until(3, 0), max_restarts=3)
    node.run()
    for thread in threading.enumerate():
        if thread.name == "rendezvous":
            thread.join(60)
    assert threading.active_count() <= before
    node.agent.receive_signal(15)  # late events are dropped
    node.agent.timer_expired(Expiry(1000, "late"))


class StuckWorkers:
    """Workers of which some make no progress in the first round; all succeed in the next one."""

    def __init__(self, *stuck):
        self.stuck = stuck

    def __call__(self, plan, workers):
        if plan.restart_count:
            succeed(plan, workers)

    def workers(self):
        stuck_workers = self

        class Moving(FakeWorkers):
            def samples(self):
                found = super().samples()
                self.done = {s.local_rank: replace(s, written=s.written + 1) for s in found}
                return [replace(s, written=0) if s.local_rank in stuck_workers.stuck else s for s in found]

        return Moving(self)


def test_worker_without_progress_is_killed_and_group_restarts(make_node, logged):
    stuck_workers = StuckWorkers(1)
    node = make_node(workers=stuck_workers.workers(), max_restarts=1, hangs=HangPolicy(0.2, warmup=0.0))
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.workers.killed) == 1
    (failure,) = [fact.failure for fact in node.observer.facts if hasattr(fact, "failure")]
    assert failure.local_rank == 1
    assert failure.reason.startswith("hang: no progress for 0.2 s (no log line, no CPU time, no beat)")
    assert failure.stack.startswith("no stack: ")
    lines = logged()
    assert lines.count("worker hangs: ") == 1
    assert "worker failed" not in lines
    decided = next(fact for fact in node.observer.facts if isinstance(fact, RestartDecided))
    assert (decided.cause, decided.restart_count) == ("hang", 1)
    assert node.workers.signals == [15, 18]  # the other worker gets SIGTERM, as after any failure


def test_hang_of_all_workers_kills_only_one(make_node):
    node = make_node(workers=StuckWorkers(0, 1).workers(), max_restarts=1, hangs=HangPolicy(0.1, warmup=0.0))
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.workers.killed) == 1


def test_hang_checks_are_off_by_default_and_during_warmup(make_node):
    for hangs in (HangPolicy(0.05, warmup=30.0), None):
        timers = []

        def on_start(plan, workers, timers=timers):
            timers.append(threading.Timer(0.3, succeed, [plan, workers]))
            timers[0].start()

        node = make_node(on_start, hangs=hangs)
        assert node.run().state is WorkerState.SUCCEEDED
        assert node.workers.killed == []
        timers[0].join()


def test_most_overdue_timer_is_the_cause(make_node):
    def on_start(plan, workers):
        if plan.restart_count == 0:
            node.agent.timer_expired(Expiry(1000, "step", late=0.1))
            node.agent.timer_expired(Expiry(1001, "load", late=0.3))
        else:
            succeed(plan, workers)

    node = make_node(on_start, max_restarts=1)
    assert node.run().state is WorkerState.SUCCEEDED
    failures = {fact.failure.global_rank: fact.failure for fact in node.observer.facts if hasattr(fact, "failure")}
    assert (failures[1].caused_by, failures[0].caused_by) == (None, 1)
    assert "'load'" in failures[1].reason


def test_timer_expiring_during_a_stop_keeps_the_grace_period(make_node):
    """The worker may have been interrupted in its block and be writing a checkpoint."""

    class Saving(FakeWorkers):
        def send_signal(self, signum):
            super().send_signal(signum)
            if signum == 15:
                node.agent.timer_expired(Expiry(1000, "step"))
                node.agent.timer_expired(Expiry(1000, "load", late=0.1))
                saved.start()

    def on_start(plan, workers):
        if plan.restart_count:
            succeed(plan, workers)
        else:
            workers.end(1, 3)

    node = make_node(workers=Saving(on_start, ignore_signals=[0]), max_restarts=1, shutdown_timeout=300.0)
    saved = threading.Timer(0.3, node.workers.end, [0, 0])
    assert node.run().state is WorkerState.SUCCEEDED
    saved.join()
    assert node.workers.killed == []
    assert 9 not in node.workers.signals
    failures = {fact.failure.global_rank: fact.failure for fact in node.observer.facts if hasattr(fact, "failure")}
    assert list(failures) == [1]


# Agents with their own `_monitor_workers`


class StopsItself(ProcessAgent):
    """Stops the group when it finds a failure, as agents for torch do."""

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._stop_workers(worker_group)
        return result


def test_agent_that_stops_its_group_in_monitor_restarts(make):
    node = make(in_turn(fail, succeed), kind=StopsItself)
    assert node.run().state is WorkerState.SUCCEEDED
    assert [fact.failure.reason for fact in node.observer.facts if hasattr(fact, "failure")] == ["exit code 3"]
    assert node.order == ["SIGTERM", "SIGCONT", "report_failure", "report_failure"]


class OwnReturnValues(ProcessAgent):
    """Gets the return values of its workers from elsewhere."""

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        if result.state is not WorkerState.SUCCEEDED:
            return result
        return RunResult(result.state, return_values={worker.global_rank: "kept" for worker in worker_group.workers})


def test_return_values_from_monitor_are_kept(make):
    node = make(succeed, kind=OwnReturnValues)
    assert node.run().return_values == {0: "kept", 1: "kept"}


def test_return_value_that_cannot_be_read_is_reported_before_the_next_round(make):
    class Unreadable(Ordered):
        finished = 0

        def finish(self):
            super().finish()
            self.finished = len(self.plans)

        def failures(self):
            unread = {0: ProcessFailure(0, 1, 0, global_rank=0, reason="unread")}
            return unread if self.finished == len(self.plans) == 1 else super().failures()

    node = make(succeed, workers=Unreadable, max_restarts=1)
    assert node.run().state is WorkerState.SUCCEEDED
    assert [fact.failure.reason for fact in node.observer.facts if hasattr(fact, "failure")] == ["unread"]
    assert len(node.workers.plans) == 2
    assert "report_failure" in node.order

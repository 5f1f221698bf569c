"""The local agent with fake workers: rounds, restarts, facts, plans, timers."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from agent_fakes import FakeWorkers
from elastic_testing import FakeClock, eventually

from elastic_core.agent import WorkerState
from elastic_core.agent.hang import HangPolicy
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.interfaces.observer import AgentFinished, RestartDecided, RoundFormed, WorkersStarted
from elastic_core.interfaces.watchdog import Expiry
from elastic_core.interfaces.workers import WorkerRanks


def all_succeed(plan, workers):
    for rank in workers.running():
        workers.end(rank, 0)


def fail_until(restart_count, *ranks):
    """Workers of which `ranks` fail until the group was restarted so often."""

    def on_start(plan, workers):
        if plan.restart_count == restart_count:
            all_succeed(plan, workers)
        else:
            for rank in ranks:
                workers.end(rank, 3)

    return on_start


def test_workers_may_end_one_after_the_other(make_node):
    def end_both(plan, workers):
        workers.end(0, 0)
        threading.Timer(0.05, workers.end, [1, 0]).start()

    assert make_node(end_both).run().state is WorkerState.SUCCEEDED


def test_one_failure_too_many_is_final(make_node):
    node = make_node(fail_until(9, 1), max_restarts=1)
    result = node.run()
    assert result.is_failed()
    assert {rank: (f.reason, f.round, f.node) for rank, f in result.failures.items()} == {
        1: ("exit code 3", 2, "node7")
    }
    assert node.handler.closed


def test_a_failure_stops_the_others_first(make_node):
    node = make_node(fail_until(9, 0), max_restarts=0)
    node.run()
    assert node.workers.signals == [15, 18]  # SIGTERM, then SIGCONT for those that were stopped


def test_a_failure_that_a_restart_cannot_cure_is_final(make_node):
    class CannotRun(FakeWorkers):
        def failures(self):
            return {rank: replace(failure, curable=False) for rank, failure in super().failures().items()}

    node = make_node(workers=CannotRun(fail_until(9, 0)), max_restarts=5)
    assert node.run().is_failed()
    assert len(node.workers.plans) == 1
    assert "a restart would not help" in node.finished.reason


def test_the_plan_of_a_round(make_node):
    node = make_node(all_succeed, max_restarts=4, contribute=lambda plan: {"ROUND": str(plan.round)})
    node.run()
    (plan,) = node.workers.plans
    assert (plan.run_id, plan.node, plan.role, plan.round) == ("job", "node7", "trainer", 1)
    assert (plan.group_rank, plan.group_world_size, plan.world_size, plan.role_world_size) == (0, 1, 2, 2)
    assert (plan.master_addr, plan.master_port, plan.use_agent_store) == ("10.0.0.7", 29001, False)
    assert (plan.restart_count, plan.max_restarts) == (0, 4)
    assert plan.ranks == (WorkerRanks(0, 0, 0), WorkerRanks(1, 1, 1))
    assert plan.contributed == {"ROUND": "1"}


def test_the_facts_of_a_run_in_order(make_node):
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
    assert formed == RoundFormed("job", 1, 0, 1, 0.0)
    assert started == WorkersStarted("job", 1, {0: 1000, 1: 1001}, {0: 0, 1: 1})
    assert (first.failure.global_rank, first.failure.caused_by) == (0, None)
    assert (second.failure.global_rank, second.failure.caused_by) == (1, 0)
    assert decided == RestartDecided("job", 1, "failure", "rank 0: exit code 3; restart 1 of 1", 1, 1)
    assert finished == AgentFinished("job", "SUCCEEDED", "every worker succeeded", 1)


def test_the_time_spent_joining_is_told(make_node, scripted_handler):
    clock = FakeClock()
    node = make_node(all_succeed, scripted_handler({1: lambda: clock.advance(2.0) and None}), clock=clock)
    node.run()
    assert node.observer.facts[0].seconds == 2.0


def test_waiting_nodes_replace_the_round_without_using_the_budget(make_node, scripted_handler):
    def on_start(plan, workers):
        if plan.round == 1:
            node.agent.timer_expired(Expiry(1, "nobody's"))  # any event makes the agent look around
        else:
            all_succeed(plan, workers)

    node = make_node(on_start, scripted_handler(waiting=[1]), max_restarts=0)
    assert node.run().state is WorkerState.SUCCEEDED
    assert [plan.restart_count for plan in node.workers.plans] == [0, 0]
    decided = next(fact for fact in node.observer.facts if isinstance(fact, RestartDecided))
    assert (decided.cause, decided.restart_count) == ("membership", 0)
    assert "WorkerFailed" not in node.facts


def test_an_expired_timer_kills_that_worker_and_the_failure_says_hang(make_node):
    def on_start(plan, workers):
        if plan.restart_count == 0:
            node.agent.timer_expired(Expiry(1001, "step"))
        else:
            all_succeed(plan, workers)

    node = make_node(on_start, max_restarts=1)
    assert node.run().state is WorkerState.SUCCEEDED
    failures = [fact.failure for fact in node.observer.facts if hasattr(fact, "failure")]
    assert [(f.global_rank, f.exitcode) for f in failures] == [(1, -9)]
    assert failures[0].reason == "hang: the watchdog timer 'step' was not released in time"
    assert node.workers.signals == [15, 18]  # the other one was asked, as after any failure


def test_an_expired_timer_of_a_process_that_is_no_worker_kills_nobody(make_node):
    def on_start(plan, workers):
        node.agent.timer_expired(Expiry(999_999, "step"))
        threading.Timer(0.05, all_succeed, [plan, workers]).start()

    node = make_node(on_start)
    assert node.run().state is WorkerState.SUCCEEDED


def test_workers_that_cannot_start_end_the_run(make_node):
    def refuse(plan, workers):
        raise ConfigurationError(Problem("entry point", "cannot be run"))

    node = make_node(refuse, max_restarts=3)
    with pytest.raises(ConfigurationError):
        node.run()
    assert node.workers.closed
    assert node.facts == ["RoundFormed", "AgentFinished"]
    assert node.finished.state == "FAILED"


def test_a_contribution_that_raises_ends_the_run_and_leaves_no_worker(make_node):
    def contribute(plan):
        raise ValueError("no variables today")

    node = make_node(all_succeed, contribute=contribute)
    with pytest.raises(ValueError, match="no variables today"):
        node.run()
    assert node.workers.plans == []
    assert node.workers.closed


def test_an_agent_that_waits_is_alive(make_node, scripted_handler):
    clock, seen = FakeClock(), []

    def join():
        clock.advance(100.0)
        # The agent's thread has begun this one, and waits very soon.
        seen.append(eventually(lambda: node.agent.alive_at() == clock.timestamp(), 30))

    node = make_node(all_succeed, scripted_handler({1: join}), clock=clock)
    begun = node.agent.alive_at()
    clock.advance(50.0)
    assert node.agent.alive_at() == begun  # it has not turned since
    node.run()
    assert seen == [True]


def test_an_agent_that_is_busy_shows_its_last_turn(make_node):
    clock, ages = FakeClock(), []

    def on_start(plan, workers):
        clock.advance(40.0)
        ages.append(clock.timestamp() - node.agent.alive_at())
        all_succeed(plan, workers)

    node = make_node(on_start, clock=clock)
    node.run()
    assert ages == [40.0]


def test_nothing_is_left_behind(make_node):
    before = threading.active_count()
    node = make_node(fail_until(3, 0), max_restarts=3)
    node.run()
    for thread in threading.enumerate():
        if thread.name == "rendezvous":
            thread.join(60)
    assert threading.active_count() <= before
    node.agent.receive_signal(15)  # late events are dropped
    node.agent.timer_expired(Expiry(1000, "late"))


class Movers:
    """Workers of which some stop moving in the first round; those of the next one succeed."""

    def __init__(self, *stuck):
        self.stuck = stuck

    def __call__(self, plan, workers):
        if plan.restart_count:
            all_succeed(plan, workers)

    def workers(self):
        movers = self

        class Moving(FakeWorkers):
            def samples(self):
                found = super().samples()
                self.done = {s.local_rank: replace(s, written=s.written + 1) for s in found}
                return [replace(s, written=0) if s.local_rank in movers.stuck else s for s in found]

        return Moving(self)


def test_a_worker_without_progress_is_killed_and_the_group_restarts(make_node):
    movers = Movers(1)
    node = make_node(workers=movers.workers(), max_restarts=1, hangs=HangPolicy(0.2, warmup=0.0))
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.workers.killed) == 1
    (failure,) = [fact.failure for fact in node.observer.facts if hasattr(fact, "failure")]
    assert failure.local_rank == 1
    assert failure.reason.startswith("hang: no progress for 0.2 s (no log line, no CPU time, no beat)")
    assert failure.stack.startswith("no stack: ")
    decided = next(fact for fact in node.observer.facts if isinstance(fact, RestartDecided))
    assert (decided.cause, decided.restart_count) == ("hang", 1)
    assert node.workers.signals == [15, 18]  # the other one was asked, as after any failure


def test_a_group_that_hangs_together_loses_one_worker_only(make_node):
    node = make_node(workers=Movers(0, 1).workers(), max_restarts=1, hangs=HangPolicy(0.1, warmup=0.0))
    assert node.run().state is WorkerState.SUCCEEDED
    assert len(node.workers.killed) == 1


def test_nobody_is_looked_at_in_the_warm_up_or_when_it_was_not_asked_for(make_node):
    for hangs in (HangPolicy(0.05, warmup=30.0), None):
        timers = []

        def on_start(plan, workers, timers=timers):
            timers.append(threading.Timer(0.3, all_succeed, [plan, workers]))
            timers[0].start()

        node = make_node(on_start, hangs=hangs)
        assert node.run().state is WorkerState.SUCCEEDED
        assert node.workers.killed == []
        timers[0].join()


def test_of_several_timers_the_one_that_is_late_most_is_the_cause(make_node):
    def on_start(plan, workers):
        if plan.restart_count == 0:
            node.agent.timer_expired(Expiry(1000, "step", late=0.1))
            node.agent.timer_expired(Expiry(1001, "load", late=0.3))
        else:
            all_succeed(plan, workers)

    node = make_node(on_start, max_restarts=1)
    assert node.run().state is WorkerState.SUCCEEDED
    failures = {fact.failure.global_rank: fact.failure for fact in node.observer.facts if hasattr(fact, "failure")}
    assert (failures[1].caused_by, failures[0].caused_by) == (None, 1)
    assert "'load'" in failures[1].reason


def test_a_timer_that_expires_while_the_group_stops_leaves_that_worker_its_grace(make_node):
    """It may have been interrupted in its block, and be writing a checkpoint."""

    class Saving(FakeWorkers):
        def send_signal(self, signum):
            super().send_signal(signum)
            if signum == 15:
                node.agent.timer_expired(Expiry(1000, "step"))
                node.agent.timer_expired(Expiry(1000, "load", late=0.1))
                saved.start()

    def on_start(plan, workers):
        if plan.restart_count:
            all_succeed(plan, workers)
        else:
            workers.end(1, 3)

    node = make_node(workers=Saving(on_start, deaf=[0]), max_restarts=1, shutdown_timeout=300.0)
    saved = threading.Timer(0.3, node.workers.end, [0, 0])
    assert node.run().state is WorkerState.SUCCEEDED
    saved.join()
    assert node.workers.killed == []
    assert 9 not in node.workers.signals
    failures = {fact.failure.global_rank: fact.failure for fact in node.observer.facts if hasattr(fact, "failure")}
    assert list(failures) == [1]

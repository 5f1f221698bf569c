"""The local agent looks, decides and acts, one after the other: who looks changes nothing."""

from __future__ import annotations

import pytest
from round_of_two import NODE_CAME, WELL, fail, pair_then, succeed, then

from elastic_core.agent import ProcessAgent, RunResult, WorkerState
from elastic_core.errors import RendezvousClosedError
from elastic_core.interfaces.watchdog import Expiry


class Looking(ProcessAgent):
    """Keeps what each look found, and what had been done by then. `done`: what was done to the workers and told to the
    others so far."""

    seen = ()
    done = staticmethod(list)

    def _monitor_workers(self, worker_group):
        before = self.done()
        result = super()._monitor_workers(worker_group)
        assert self.done() == before
        self.seen = (*self.seen, (result.state, before))
        return result


@pytest.fixture
def look(make):
    """A node whose agent keeps its looks."""

    def look(*args, **kwargs):
        node = make(*args, kind=Looking, **kwargs)
        node.agent.done = lambda: [*node.order, *node.workers.killed, *node.handler.named("report_success")]
        return node

    return look


def test_a_failure_is_found_before_anything_is_done_about_it(look):
    node = look(fail, pair_then(RendezvousClosedError("no restart left")))
    node.run()
    assert node.agent.seen == ((WorkerState.FAILED, []),)
    assert node.order == ["report_failure", "SIGTERM", "SIGCONT", "report_failure"]


def test_success_is_found_before_it_is_told(look):
    node = look(succeed, on_success=lambda rounds: rounds.give(WELL))
    assert node.run() == RunResult(WorkerState.SUCCEEDED, return_values={0: None, 1: None})
    assert node.agent.seen == ((WorkerState.SUCCEEDED, []),)


def test_workers_that_run_are_left_alone(look):
    node = look(
        then(lambda plan, workers: node.handler.give(NODE_CAME), succeed), on_success=lambda rounds: rounds.give(WELL)
    )
    node.run()
    assert [state for state, _ in node.agent.seen] == [WorkerState.HEALTHY, WorkerState.SUCCEEDED]
    assert node.agent.seen[0][1] == []


def test_a_worker_that_hangs_is_killed_before_the_look_that_finds_it(look):
    node = look(
        then(lambda plan, workers: node.agent.timer_expired(Expiry(1001, "step")), succeed),
        on_success=lambda rounds: rounds.give(WELL),
    )
    node.run()
    killed = ["hang: the watchdog timer 'step' was not released in time"]
    assert node.agent.seen[0] == (WorkerState.FAILED, killed)


class StopsItself(ProcessAgent):
    """As agents for torch do: who looks and finds a failure, stops the group."""

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._stop_workers(worker_group)
        return result


def test_one_that_stops_its_group_while_it_looks_goes_on_as_others_do(make):
    node = make(then(fail, succeed), on_success=lambda rounds: rounds.give(WELL), kind=StopsItself)
    assert node.run().state is WorkerState.SUCCEEDED
    assert [fact.failure.reason for fact in node.observer.facts if hasattr(fact, "failure")] == ["exit code 3"]
    assert node.order == ["SIGTERM", "SIGCONT", "report_failure", "report_failure"]


class KnowsBetter(ProcessAgent):
    """What its workers returned is found elsewhere."""

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        if result.state is not WorkerState.SUCCEEDED:
            return result
        return RunResult(result.state, return_values={worker.global_rank: "kept" for worker in worker_group.workers})


def test_what_one_of_a_program_says_was_returned_is_kept(make):
    node = make(succeed, on_success=lambda rounds: rounds.give(WELL), kind=KnowsBetter)
    assert node.run().return_values == {0: "kept", 1: "kept"}

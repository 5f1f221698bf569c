"""Local agents with their own `_monitor_workers`."""

from __future__ import annotations

from round_of_two import JOB_DONE, fail, in_turn, succeed

from elastic_core.agent import ProcessAgent, RunResult, WorkerState


class StopsItself(ProcessAgent):
    """Stops the group when it finds a failure, as agents for torch do."""

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._stop_workers(worker_group)
        return result


def test_agent_that_stops_its_group_in_monitor_restarts(make):
    node = make(in_turn(fail, succeed), on_success=lambda rounds: rounds.give(JOB_DONE), kind=StopsItself)
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
    node = make(succeed, on_success=lambda rounds: rounds.give(JOB_DONE), kind=OwnReturnValues)
    assert node.run().return_values == {0: "kept", 1: "kept"}

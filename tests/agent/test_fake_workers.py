"""The fake workers keep the promises of `interfaces.workers.WorkerProcesses`."""

from __future__ import annotations

import select
import signal
import threading

import pytest
from agent_fakes import FakeWorkers

from elastic_core.interfaces.workers import Leftover, RoundPlan, WorkerExit, WorkerProcesses, WorkerRanks


def plan(round_=1, offset=4):
    return RoundPlan(
        round=round_,
        run_id="job",
        node="node7",
        role="trainer",
        group_rank=0,
        group_world_size=1,
        world_size=6,
        role_world_size=6,
        master_addr="localhost",
        master_port=1,
        use_agent_store=False,
        restart_count=0,
        max_restarts=0,
        ranks=(WorkerRanks(0, offset, offset), WorkerRanks(1, offset + 1, offset + 1)),
    )


@pytest.fixture
def make():
    made = []

    def make(*args, **kwargs):
        made.append(FakeWorkers(*args, **kwargs))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


def rings(workers, seconds=0.0):
    return bool(select.select(workers.sentinels(), [], [], seconds)[0])


def test_a_round_that_goes_well(make):
    workers: WorkerProcesses = make()
    assert workers.start(plan()) == {0: 1000, 1: 1001}
    assert (workers.running(), workers.reap(), rings(workers)) == ([0, 1], [], False)
    workers.end(1, 0)
    assert rings(workers)
    assert (workers.reap(), workers.running(), rings(workers)) == ([WorkerExit(1, 1001, 0)], [0], False)
    workers.end(0, 0)
    assert workers.reap() == [WorkerExit(0, 1000, 0)]
    assert (workers.sentinels(), workers.leftovers(), workers.leftover_sentinels()) == ([], [], [])
    workers.finish()
    assert (workers.failures(), workers.return_values()) == ({}, {4: None, 5: None})


def test_workers_that_end_at_once_ring_too(make):
    workers = make(lambda plan, workers: [workers.end(rank, 0) for rank in (0, 1)])
    workers.start(plan())
    assert workers.running() == []
    assert rings(workers)


def test_failures_by_global_rank_in_the_order_of_ending(make):
    workers = make()
    workers.start(plan())
    workers.end(1, 3)
    workers.end(0, -11)
    workers.finish()
    failures = workers.failures()
    assert list(failures) == [5, 4]
    assert (failures[5].reason, failures[5].caused_by, failures[5].local_rank, failures[5].role) == (
        "exit code 3",
        None,
        1,
        "trainer",
    )
    assert (failures[4].exitcode, failures[4].caused_by, failures[4].round, failures[4].node) == (-11, 5, 1, "node7")


def test_failures_are_known_while_others_run(make):
    workers = make()
    assert workers.failures_so_far() == {}
    workers.start(plan())
    assert workers.failures_so_far() == {}
    workers.end(1, 3)
    assert {rank: failure.reason for rank, failure in workers.failures_so_far().items()} == {5: "exit code 3"}
    assert workers.failures() == {}


def test_signals_end_workers_and_their_ends_are_no_failures(make):
    workers = make()
    workers.start(plan())
    workers.send_signal(signal.SIGCONT)
    assert workers.running() == [0, 1]
    workers.send_signal(signal.SIGTERM)
    assert rings(workers)
    assert [ended.exitcode for ended in workers.reap()] == [-15, -15]
    workers.finish()
    assert (workers.failures(), workers.return_values(), workers.signals) == ({}, {}, [18, 15])


def test_deaf_and_immortal_workers(make):
    workers = make(deaf=[0], immortal=[1])
    workers.start(plan())
    workers.send_signal(signal.SIGTERM)
    assert workers.running() == [0, 1]
    workers.send_signal(signal.SIGKILL)
    assert workers.leftovers() == [Leftover(1001, "D", "fake worker 1", "fake_wait")]


def test_killing_one_worker_is_a_failure_with_that_reason(make):
    workers = make()
    workers.start(plan())
    assert workers.kill(1001, "hang") == 1
    assert workers.kill(1001, "again") is None
    workers.finish()
    assert [(rank, failure.reason, failure.exitcode) for rank, failure in workers.failures().items()] == [
        (5, "hang", -9)
    ]


def test_a_finished_round_leaves_nothing_to_the_next(make):
    workers = make(immortal=[0])
    workers.start(plan())
    workers.end(1, 3)
    workers.finish()
    assert (workers.running(), workers.leftovers(), workers.reap(), workers.sentinels()) == ([], [], [], [])
    workers.finish()
    assert list(workers.failures()) == [5]  # what it came to stands until the next round is finished
    assert workers.start(plan(2)) == {0: 2000, 1: 2001}
    assert (workers.reap(), rings(workers)) == ([], False)
    workers.end(0, 0)
    workers.finish()
    assert (workers.failures(), [plan.round for plan in workers.plans]) == ({}, [1, 2])


def test_finishing_before_the_first_round_does_nothing(make):
    workers = make()
    workers.finish()
    assert (workers.failures(), workers.return_values()) == ({}, {})


def test_who_does_not_run_cannot_end(make):
    workers = make()
    workers.start(plan())
    workers.end(0, 0)
    with pytest.raises(ValueError, match=r"expected one of the running workers \[1\], found 0"):
        workers.end(0, 0)


def test_ends_from_another_thread_wake_the_waiter(make):
    workers = make()
    workers.start(plan())
    threading.Timer(0.05, workers.end, [0, 0]).start()
    assert rings(workers, seconds=30.0)


def test_closing_is_idempotent(make):
    workers = make()
    workers.close()
    workers.close()
    assert workers.closed

"""The status on the board after each fact reported by an agent."""

from __future__ import annotations

import threading

import pytest
from elastic_testing import FakeClock

from elastic_core.clock import Instant
from elastic_core.errors import ProcessFailure
from elastic_core.health.board import KEPT, StatusBoard
from elastic_core.interfaces.health import AgentPhase, Recovery, StopStatus, WorkerStatus
from elastic_core.interfaces.node import Member, Round
from elastic_core.interfaces.observer import (
    AgentFinished,
    PhaseChanged,
    RestartDecided,
    RoundFormed,
    WorkerExited,
    WorkerFailed,
    WorkersStarted,
)

MEMBERS = (Member("node0", "host0", "10.0.0.1", "trainer", 2), Member("node1", "host1", "10.0.0.2", "trainer", 3))
EPOCH = 1_700_000_000.0


class Story:
    """Reports the facts of an agent to a board; each phase takes a second."""

    def __init__(self):
        self.clock = FakeClock(EPOCH)
        self.board = StatusBoard("job", "node0", "trainer", 3, self.clock)

    @property
    def now(self):
        return self.board.status()

    @property
    def states(self):
        return [worker.state for worker in self.now.workers]

    def phase(self, name, reason="", late=0.0):
        at = self.clock.advance(1.0)
        self.board(PhaseChanged("job", AgentPhase(name), reason, at, Instant(at - late)))

    def round(self, number, restart_count=0):
        """Form a round and start its two workers."""
        self.phase("joining", "waits")
        formed = Round(number, MEMBERS, restart_count, "all are here")
        self.board(RoundFormed("job", number, 0, 2, 0.5, formed))
        self.phase("starting")
        pids = {1: number * 100 + 1, 0: number * 100}
        self.board(WorkersStarted("job", number, pids, {0: 0, 1: 1}))
        self.phase("running")

    def exit(self, local_rank, exitcode, stopped=False):
        self.board(WorkerExited("job", self.now.round, local_rank, exitcode, stopped))

    def fail(self, local_rank, caused_by=None):
        pid = self.now.workers[local_rank].pid
        failure = ProcessFailure(local_rank, pid, 3, round=self.now.round, reason="exit code 3", caused_by=caused_by)
        self.board(WorkerFailed("job", failure))
        return failure

    def restart(self, cause, reason, count):
        self.board(RestartDecided("job", self.now.round, cause, reason, count, 3))

    def finish(self, state, reason):
        self.board(AgentFinished("job", state, reason, 1))
        self.phase("finished", reason)


@pytest.fixture
def story():
    return Story()


def test_status_before_the_start_has_no_round(story):
    now = story.now
    assert (now.version, now.run_id, now.node, now.role, now.max_restarts) == (1, "job", "node0", "trainer", 3)
    assert (now.phase, now.reason, now.phase_since) == (AgentPhase.JOINING, "not started yet", EPOCH)
    assert (now.round, now.group_rank, now.members, now.workers, now.rounds) == (0, -1, (), (), ())


def test_running_round_has_members_and_workers(story):
    story.round(7, restart_count=2)
    now = story.now
    assert (now.round, now.group_rank, now.restart_count, now.members) == (7, 0, 2, MEMBERS)
    assert now.workers == (WorkerStatus(0, 0, 700, "running"), WorkerStatus(1, 1, 701, "running"))
    (formed,) = now.rounds
    assert (formed.number, formed.nodes, formed.group_rank, formed.world_size) == (7, 2, 0, 5)
    assert (formed.formed_at, formed.formed_because, formed.rendezvous) == (EPOCH + 1, "all are here", 0.5)
    assert (formed.ended_at, formed.ended_because, formed.cause) == (None, "", "")
    assert (now.phase, now.phase_since, now.recoveries, now.restarts) == (AgentPhase.RUNNING, EPOCH + 3, (), ())


def test_new_reason_does_not_restart_the_phase(story):
    story.phase("joining", "1 of 2 nodes joined")
    story.phase("joining", "2 of 2 nodes joined")
    assert (story.now.phase_since, story.now.reason) == (EPOCH, "2 of 2 nodes joined")


def test_failure_and_recovery_are_recorded(story):
    story.round(1)
    story.exit(0, 3)
    assert story.states == ["failed", "running"]
    story.phase("stopping", "rank 0: exit code 3", late=0.25)
    ended = story.now.rounds[-1]
    assert (ended.ended_at, ended.ended_because, ended.cause) == (EPOCH + 4, "rank 0: exit code 3", "")
    failure = story.fail(0)
    story.restart("failure", "rank 0: exit code 3; restart 1 of 3", 1)
    ended = story.now.rounds[-1]
    assert (ended.ended_at, ended.cause) == (EPOCH + 4, "failure")
    assert (story.now.restarts, story.now.restart_count, story.now.last_failure) == ((("failure", 1),), 1, failure)
    story.round(2, restart_count=1)
    assert story.states == ["running", "running"]
    reason = "rank 0: exit code 3; restart 1 of 3"
    assert story.now.recoveries == (Recovery(2, "failure", reason, EPOCH + 7, 0.25, 1.0, 1.0, 1.0),)
    assert story.now.recoveries[0].total == 3.25
    assert [each.cause for each in story.now.rounds] == ["failure", ""]
    assert story.now.last_failure == failure


def test_late_decision_updates_the_ended_round(story):
    """The decision is reported while joining, before the new round."""
    story.round(1)
    story.phase("stopping", "rank 0: exit code 1")
    story.phase("joining", "waits")
    assert (story.now.rounds[-1].ended_because, story.now.rounds[-1].cause) == ("rank 0: exit code 1", "")
    story.restart("hang", "rank 0: hang", 1)
    story.round(2, restart_count=1)
    assert [(each.cause, each.ended_because) for each in story.now.rounds] == [("hang", "rank 0: hang"), ("", "")]
    assert (story.now.recoveries[0].cause, story.now.recoveries[0].rendezvous) == ("hang", 2.0)


def test_workers_stopped_by_the_agent_are_stopped(story):
    story.round(1)
    story.exit(1, 0)
    story.phase("stopping", "node5 joined")
    assert story.states == ["running", "succeeded"]
    story.exit(0, -15, stopped=True)
    assert story.states == ["stopped", "succeeded"]
    story.round(2)
    story.restart("membership", "node5 joined", 0)
    story.phase("joining", "waits")
    assert story.states == ["stopped", "stopped"]


def test_last_failure_is_the_first_of_the_latest_failed_round(story):
    story.round(1)
    later, first = story.fail(0, caused_by=1), story.fail(1)
    assert story.states == ["failed", "failed"]
    assert story.now.last_failure == first
    story.fail(0, caused_by=1)
    assert story.now.last_failure == first
    story.round(2)
    assert story.now.last_failure == first
    assert story.fail(0, caused_by=9) == story.now.last_failure != later


def test_restarts_are_counted_by_cause(story):
    for number, cause in enumerate(["membership", "failure", "hang", "failure"], 1):
        story.round(number)
        story.restart(cause, "why", 0)
    assert story.now.restarts == (("failure", 2), ("hang", 1), ("membership", 1))


def test_successful_job_ends_its_round(story):
    story.round(1)
    story.phase("finishing", "every worker succeeded")
    assert (story.states, story.now.rounds[-1].ended_at) == (["succeeded", "succeeded"], None)
    story.finish("SUCCEEDED", "every worker succeeded")
    ended = story.now.rounds[-1]
    assert (ended.ended_at, ended.cause, ended.ended_because) == (EPOCH + 4, "succeeded", "every worker succeeded")
    assert (story.now.phase, story.now.reason) == (AgentPhase.FINISHED, "every worker succeeded")
    assert story.states == ["succeeded", "succeeded"]


def test_failed_job_ends_its_round(story):
    story.round(1)
    story.phase("stopping", "rank 0: exit code 3")
    story.fail(0)
    story.finish("FAILED", "rank 0: exit code 3; no restart is allowed")
    ended = story.now.rounds[-1]
    assert (ended.ended_at, ended.cause) == (EPOCH + 4, "failed")
    assert ended.ended_because == "rank 0: exit code 3; no restart is allowed"
    assert story.states == ["failed", "stopped"]


def test_status_shows_how_far_a_stop_is(story):
    story.round(1)
    stop = StopStatus(1, 40, 69.0, 99.0, (0,), (1,))
    story.board(PhaseChanged("job", AgentPhase.DRAINING, "received SIGTERM", story.clock.now(), stop=stop))
    assert story.board.status().stop == stop
    story.phase("finished", "stopped by SIGTERM")
    assert story.board.status().stop is None


def test_draining_stops_running_workers(story):
    story.round(1)
    story.phase("draining", "received SIGTERM")
    story.finish("STOPPED", "stopped by SIGTERM")
    assert (story.now.rounds[-1].cause, story.now.rounds[-1].ended_at) == ("stopped", EPOCH + 4)
    assert story.states == ["stopped", "stopped"]


@pytest.mark.parametrize("judged", [True, False])
def test_draining_while_joining_keeps_the_end_of_the_round(story, judged):
    story.round(1)
    story.phase("stopping", "rank 0: exit code 1")
    if judged:
        story.restart("failure", "rank 0: exit code 1", 1)
    story.phase("joining", "waits")
    story.phase("draining", "received SIGTERM")
    assert (story.now.reason, story.now.rounds[-1].ended_because) == ("received SIGTERM", "rank 0: exit code 1")
    story.finish("STOPPED", "stopped")
    assert story.now.rounds[-1].cause == ("failure" if judged else "stopped")


def test_unneeded_spare_has_no_rounds(story):
    story.phase("joining", "waits")
    story.finish("SUCCEEDED", "not needed")
    assert (story.now.phase, story.now.rounds, story.now.recoveries) == (AgentPhase.FINISHED, (), ())


def test_only_the_last_rounds_and_recoveries_are_kept(story):
    for number in range(1, KEPT + 4):
        story.round(number)
        story.phase("stopping", "why")
        story.restart("failure", "why", number)
    now = story.now
    assert [each.number for each in now.rounds] == list(range(4, KEPT + 4))
    assert [each.round for each in now.recoveries] == list(range(4, KEPT + 4))
    assert now.restarts == (("failure", KEPT + 3),)


def test_subscriber_is_notified_until_it_unsubscribes(story):
    versions = []
    end = story.board.subscribe(lambda: versions.append(story.now.version))
    story.round(1)
    assert versions == [2, 3, 4, 5, 6]
    end()
    end()
    story.phase("stopping")
    assert (len(versions), story.now.version) == (5, 7)


def test_subscribing_is_safe_while_the_board_changes(story):
    stop, rounds = threading.Event(), []

    def subscribe_repeatedly():
        while not stop.is_set():
            end = story.board.subscribe(lambda: rounds.append(story.now.round))
            assert story.now.version >= 1
            end()

    threads = [threading.Thread(target=subscribe_repeatedly) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(1, 50):
        story.round(number)
    stop.set()
    for thread in threads:
        thread.join(60)
    notified = len(rounds)
    story.phase("stopping")
    assert (len(rounds), story.now.version) == (notified, 1 + 49 * 5 + 1)

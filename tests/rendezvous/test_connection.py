"""Whether the store is available, and what a node does about outages."""

from __future__ import annotations

import pytest

from elastic_core.clock import Instant
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.connection import Connection
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

OUTAGE = RendezvousConnectionError("refused")


@pytest.fixture
def well():
    return Connection(RendezvousSettings("job", 1, 2, RendezvousTimeout(heartbeat=2.0), 1.0, 5))


def failing(connection, times):
    for now in times:
        connection = connection.failed(Instant(now), OUTAGE, Instant(now))
    return connection


def answered(connection):
    return connection.answered(Instant(20.0), Instant(20.1))


def test_silence_begins_with_the_pending_operation(well):
    assert well.silent_since(None) is None
    assert well.silent_since(Instant(1.0)) == 1.0
    assert well.answered(Instant(1.0), Instant(1.1)) == well


def test_outage_begins_with_the_first_failed_attempt(well):
    away = failing(well, [10.0, 11.0, 12.0])
    assert away.silent_since(None) == away.silent_since(Instant(13.0)) == 10.0
    assert answered(away).silent_since(None) is None


def test_pauses_between_attempts_grow(well):
    away = failing(well, [0.0])
    assert not away.retry_due(Instant(0.04))
    assert away.retry_due(Instant(0.05))
    assert not failing(away, [0.05]).retry_due(Instant(0.14))
    assert failing(well, range(9)).retry_at == 9.0
    assert failing(well, range(9)).retry_now().retry_due(Instant(8.0))


def test_fault_is_forgotten_when_no_work_is_left(well):
    away = failing(well, range(9))
    assert answered(away).outage is OUTAGE
    assert answered(away).faults_forgotten() == well
    assert well.faults_forgotten() == well


def test_slow_answer_means_an_outage(well):
    assert not well.was_outage(Instant(0.0), Instant(0.9))
    assert well.was_outage(Instant(0.0), Instant(1.1))
    assert failing(well, [0.0]).was_outage(Instant(5.0), Instant(5.0))


def test_repeated_slow_answers_are_one_outage_per_timeout(well):
    """Otherwise a node whose answers are always slow would never consider a peer lost."""
    slow = well.answered(Instant(0.0), Instant(1.1))
    assert not slow.was_outage(Instant(1.1), Instant(2.2))
    quick = slow.answered(Instant(1.1), Instant(1.2))
    assert not quick.was_outage(Instant(1.2), Instant(2.3))
    assert slow.answered(Instant(1.1), Instant(2.2)).was_outage(Instant(5.0), Instant(6.1))


def test_outage_is_logged_after_the_heartbeat_timeout(well):
    asked = Instant(10.0)
    assert not well.should_log(asked, Instant(11.9))
    assert well.should_log(asked, Instant(12.0))
    assert well.next_look(asked, Instant(10.5)) == 12.0
    assert well.next_look(asked, Instant(13.0)) == 15.0
    assert well.next_look(None, Instant(20.0)) == 22.0


def test_node_fences_one_heartbeat_before_its_timeout(well):
    asked = Instant(10.0)
    assert well.fence_at(asked, 0.0, Instant(11.0)) == 14.0
    assert not well.fenced(asked, 0.0, Instant(13.9))[1]
    assert well.fenced(asked, 0.0, Instant(14.0))[1]
    assert not well.fenced(asked, 30.0, Instant(43.9))[1]
    assert well.fenced(asked, 30.0, Instant(44.0))[1]
    assert not well.fenced(None, 0.0, Instant(1000.0))[1]


def test_process_that_slept_gets_one_more_heartbeat(well):
    asked = Instant(10.0)
    slept, fenced = well.fenced(asked, 0.0, Instant(60.0))
    assert not fenced
    assert slept.fence_at(asked, 0.0, Instant(60.0)) == 61.0
    assert not slept.fenced(asked, 0.0, Instant(60.9))[1]
    assert slept.fenced(asked, 0.0, Instant(61.0))[1]
    assert not answered(slept).fenced(None, 0.0, Instant(61.0))[1]

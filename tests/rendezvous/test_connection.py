"""Whether the store is available, and what a node does about outages."""

from __future__ import annotations

import pytest

from elastic_core.clock import Instant
from elastic_core.errors import RendezvousConnectionError
from elastic_core.rendezvous.connection import Connection
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

AWAKE = Instant(60.1)
OUTAGE = RendezvousConnectionError("refused")


@pytest.fixture
def well():
    return Connection(RendezvousSettings("job", 1, 2, RendezvousTimeout(heartbeat=2.0), 1.0, 5))


def failing(connection, times):
    for now in times:
        connection = connection.began(Instant(now)).failed(OUTAGE, Instant(now))
    return connection


def answered(connection, asked=20.0, at=20.1):
    return connection.began(Instant(asked)).answered(Instant(at))


def was_outage(connection, asked, at):
    return connection.began(Instant(asked)).was_outage(Instant(at))


def test_slow_answer_means_an_outage(well):
    assert not was_outage(well, 0.0, 0.9)
    assert was_outage(well, 0.0, 1.1)
    assert was_outage(failing(well, [0.0]), 5.0, 5.0)


def test_repeated_slow_answers_are_one_outage_per_timeout(well):
    """Otherwise a node whose answers are always slow would never consider a peer lost."""
    slow = answered(well, 0.0, 1.1)
    assert not was_outage(slow, 1.1, 2.2)
    quick = answered(slow, 1.1, 1.2)
    assert not was_outage(quick, 1.2, 2.3)
    assert was_outage(answered(slow, 1.1, 2.2), 5.0, 6.1)


def test_outage_is_logged_after_the_heartbeat_timeout(well):
    asked = well.began(Instant(10.0))
    assert not asked.should_log(Instant(11.9))
    assert asked.should_log(Instant(12.0))
    assert asked.next_look(Instant(10.5)) == 12.0
    assert asked.next_look(Instant(13.0)) == 15.0
    assert well.next_look(Instant(20.0)) == 22.0


def test_late_answer_to_a_heartbeat_extends_no_deadline(well):
    """The store received the heartbeat at 10.0 or later, so other nodes may consider this one lost from 15.0 on."""
    beaten = well.began(Instant(10.0)).answered(Instant(13.9), renews=True)
    cut_off = answered(beaten, 13.9, 14.0).began(Instant(14.0))
    assert cut_off.fence_at(0.0, Instant(14.5)) == 15.0
    assert [cut_off.fenced(0.0, Instant(now))[1] for now in (14.9, 15.0)] == [False, True]
    assert cut_off.fence_at(30.0, Instant(14.5)) == 45.0
    assert beaten.fence_at(0.0, Instant(14.5)) == 18.5  # nothing is unanswered


def test_belated_heartbeat_counts_once_the_state_was_read(well):
    """Other nodes may have declared this one lost before its heartbeat arrived. Only the state shows that."""
    slept, _ = well.began(Instant(10.0)).answered(Instant(10.1), renews=True).began(Instant(60.0)).fenced(0.0, AWAKE)
    reading = slept.answered(Instant(60.2), renews=True).began(Instant(60.2))
    assert reading.fence_at(0.0, Instant(60.3)) == AWAKE + 1.0
    assert reading.fenced(0.0, Instant(61.1))[1]
    confirmed = reading.answered(Instant(60.3), confirms=True).began(Instant(60.4))
    assert confirmed.fence_at(0.0, Instant(60.5)) == 64.4


def test_process_that_slept_gets_one_more_heartbeat(well):
    asked = well.began(Instant(10.0))
    slept, fenced = asked.fenced(0.0, Instant(60.0))
    assert not fenced
    assert slept.fence_at(0.0, Instant(60.0)) == 61.0
    assert not slept.fenced(0.0, Instant(60.9))[1]
    assert slept.fenced(0.0, Instant(61.0))[1]
    assert not answered(slept).fenced(0.0, Instant(61.0))[1]

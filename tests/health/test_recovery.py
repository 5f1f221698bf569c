from __future__ import annotations

import pytest

from elastic_core.clock import Instant
from elastic_core.health.board import RecoveryMarks
from elastic_core.interfaces.health import AgentPhase, AgentStatus
from elastic_core.interfaces.observer import PhaseChanged

STATUS = AgentStatus(1, "job", "node0", "trainer", AgentPhase.RUNNING, 0.0)


def parts(*phases):
    """The parts of the recoveries in these phases; each phase is a name, a time and the time of its first sign."""
    marks, found = RecoveryMarks(), []
    for name, at, *sign in phases:
        fact = PhaseChanged("job", AgentPhase(name), "", Instant(at), *(Instant(each) for each in sign))
        found.append(marks.recovery(fact, STATUS, 0.0))
        marks = marks.after(fact)
    return [(each.detect, each.stop, each.rendezvous, each.start) for each in found if each]


FIRST = [("joining", 0.0), ("starting", 4.0), ("running", 5.0)]
AGAIN = [("joining", 104.0), ("starting", 107.0), ("running", 111.0)]


@pytest.mark.parametrize("sign", [(), (101.0,), (500.0,)])
def test_late_or_missing_first_sign_gives_no_detection_time(sign):
    assert parts(*FIRST, ("stopping", 101.0, *sign), *AGAIN) == [(0.0, 3.0, 3.0, 4.0)]


def test_repeated_phase_keeps_its_first_time():
    repeated = [
        ("stopping", 101.0, 100.5),
        ("stopping", 103.0, 103.0),
        ("joining", 104.0),
        ("joining", 106.0),
        *AGAIN[1:],
    ]
    assert parts(*FIRST, *repeated) == [(0.5, 3.0, 3.0, 4.0)]


def test_each_recovery_has_its_own_parts():
    second = [("stopping", 201.0, 200.0), ("joining", 202.0), ("starting", 203.0), ("running", 204.0)]
    assert parts(*FIRST, ("stopping", 101.0), *AGAIN, *second) == [(0.0, 3.0, 3.0, 4.0), (1.0, 1.0, 1.0, 1.0)]


def test_recovery_after_finishing_is_measured():
    assert parts(*FIRST, ("finishing", 90.0), ("stopping", 101.0), *AGAIN) == [(0.0, 3.0, 3.0, 4.0)]


@pytest.mark.parametrize("end", ["draining", "finished"])
def test_leaving_node_has_no_recovery(end):
    assert parts(*FIRST, ("stopping", 101.0), ("joining", 104.0), (end, 105.0), *AGAIN) == []

"""How a node reacts to a state that another program has overwritten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.clock import Instant
from elastic_core.interfaces.backend import ForeignStateError
from elastic_core.rendezvous.connection import Remedy, Repair
from elastic_core.rendezvous.model import RoundId, State
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

AGREED, NEW = State(round=RoundId(3)), State()
RUBBISH = ForeignStateError("", None, others=False)
OTHERS = ForeignStateError("", None)
OF_ANOTHER_SECRET = ForeignStateError("", None, secret=True)
WELL = Repair(RendezvousSettings("job", 1, 2, RendezvousTimeout(), 1.0, 5))
EARLY, LATE = Instant(104.9), Instant(105.0)
SEEN = replace(WELL, since=Instant(100.0))


@pytest.mark.parametrize(
    ("found", "known", "now", "remedy"),
    [
        (RUBBISH, AGREED, EARLY, Remedy.PUT_BACK),
        (OTHERS, AGREED, LATE, Remedy.PUT_BACK),
        (OF_ANOTHER_SECRET, AGREED, LATE, Remedy.PUT_BACK),
        (RUBBISH, NEW, EARLY, Remedy.PUT_BACK),
        (OTHERS, NEW, EARLY, Remedy.PUT_BACK),
        (OF_ANOTHER_SECRET, NEW, EARLY, Remedy.WAIT),
        (OF_ANOTHER_SECRET, NEW, LATE, Remedy.CHALLENGE),
        (RUBBISH, None, EARLY, Remedy.WAIT),
        (RUBBISH, None, LATE, Remedy.PASS_OVER),
        (OTHERS, None, EARLY, Remedy.WAIT),
        (OTHERS, None, LATE, Remedy.REFUSE),
        (OF_ANOTHER_SECRET, None, EARLY, Remedy.WAIT),
        (OF_ANOTHER_SECRET, None, LATE, Remedy.CHALLENGE),
    ],
)
def test_remedy_depends_on_state_and_time(found, known, now, remedy):
    assert SEEN.sees(found, known, now)[1] is remedy


def test_refusal_follows_three_answered_challenges():
    repair, remedies = SEEN, []
    for _ in range(5):
        repair, remedy = repair.sees(OF_ANOTHER_SECRET, None, LATE)
        remedies.append(remedy)
    assert remedies == [Remedy.CHALLENGE] * 3 + [Remedy.REFUSE] * 2


def test_challenger_ignores_state_without_round():
    challenged, _ = SEEN.sees(OF_ANOTHER_SECRET, None, LATE)
    assert challenged.distrusts(NEW, Instant(109.9))
    assert challenged.distrusts(None, Instant(109.9))
    assert not challenged.distrusts(NEW, Instant(110.0))
    assert not challenged.distrusts(AGREED, Instant(109.9))
    assert not SEEN.distrusts(NEW, EARLY)


def test_leader_repairs_periodically_challenger_immediately():
    assert not SEEN.is_due(False, EARLY, LATE)
    assert SEEN.is_due(True, LATE, LATE)
    assert not SEEN.is_due(True, LATE, EARLY)
    assert replace(SEEN, challenges=1).is_due(False, LATE, EARLY)
    assert WELL.is_due(False, LATE, EARLY)  # data that the store has lost

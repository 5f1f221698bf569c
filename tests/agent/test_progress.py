from __future__ import annotations

from elastic_core.agent.progress import FIRST_AFTER, THEN_EVERY, Progress
from elastic_core.testing import FakeClock


def test_it_tells_after_a_while_and_then_now_and_again():
    clock, told = FakeClock(), []
    clock.advance(50)
    progress = Progress.starting(clock.now(), told.append)
    assert progress.look(clock.now()) == 50 + FIRST_AFTER
    assert progress.look(clock.advance(FIRST_AFTER - 0.1)) == 50 + FIRST_AFTER
    assert told == []
    assert progress.look(clock.advance(0.1)) == 50 + FIRST_AFTER + THEN_EVERY
    progress.look(clock.now())
    assert told == [FIRST_AFTER]
    progress.look(clock.advance(THEN_EVERY))
    assert told == [FIRST_AFTER, FIRST_AFTER + THEN_EVERY]


def test_a_long_sleep_is_told_once():
    clock, told = FakeClock(), []
    progress = Progress.starting(clock.now(), told.append)
    assert progress.look(clock.advance(1000)) == 1000 + THEN_EVERY
    assert told == [1000]

from __future__ import annotations

import re

from elastic_testing import FakeClock

from elastic_core.agent.reporter import FIRST_AFTER, THEN_EVERY, Progress


def test_wait_is_logged_late_and_then_repeatedly(logged):
    clock = FakeClock()
    clock.advance(50)
    progress = Progress(clock.now(), "rain")
    assert progress.look(clock.now()) == 50 + FIRST_AFTER
    assert progress.look(clock.advance(FIRST_AFTER - 0.1)) == 50 + FIRST_AFTER
    assert logged() == ""
    assert progress.look(clock.advance(0.1)) == 50 + FIRST_AFTER + THEN_EVERY
    progress.look(clock.now())
    progress.look(clock.advance(THEN_EVERY))
    lines = re.findall("still waiting: (.*)", logged())
    assert lines == [f"waiting_for=rain seconds={s:.0f}" for s in (FIRST_AFTER, FIRST_AFTER + THEN_EVERY)]


def test_long_sleep_is_logged_once(logged):
    clock = FakeClock()
    progress = Progress(clock.now(), "rain")
    assert progress.look(clock.advance(1000)) == 1000 + THEN_EVERY
    assert logged().count("seconds=1000") == 1


def test_details_are_computed_only_when_logged(logged):
    clock, asked = FakeClock(), []
    progress = Progress(clock.now(), "rain", lambda seconds: asked.append(seconds) or {"clouds": len(asked)})
    progress.look(clock.advance(1))
    progress.look(clock.advance(3))
    progress.look(clock.advance(5))
    assert asked == [4, 9]
    assert "waiting_for=rain clouds=2" in logged()

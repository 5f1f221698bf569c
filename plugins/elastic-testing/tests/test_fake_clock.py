from __future__ import annotations

import pytest
from elastic_testing import FakeClock

from elastic_core.clock import Clock, later


def test_clock_stands_still_until_advanced():
    clock: Clock = FakeClock(epoch=1000.0)
    assert (clock.now(), clock.now(), clock.timestamp()) == (0.0, 0.0, 1000.0)
    assert clock.advance(2.5) == 2.5
    assert (clock.now(), clock.timestamp()) == (2.5, 1002.5)
    assert later(clock.now(), 1.5) == 4.0


def test_clock_cannot_go_back():
    with pytest.raises(ValueError, match=r"a monotonic clock cannot go back by 0\.1 s"):
        FakeClock().advance(-0.1)

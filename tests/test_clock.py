from __future__ import annotations

import time

from elastic_core.clock import Clock, SystemClock, later


def test_the_clock_of_this_machine():
    clock: Clock = SystemClock()
    assert clock.now() <= clock.now()
    assert abs(clock.timestamp() - time.time()) < 60
    assert later(clock.now(), 60) > clock.now()

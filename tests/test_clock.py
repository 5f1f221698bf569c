from __future__ import annotations

import time

from elastic_core.clock import Clock, SystemClock, later


def test_system_clock_is_monotonic_and_has_the_time():
    clock: Clock = SystemClock()
    assert clock.now() <= clock.now()
    assert abs(clock.timestamp() - time.time()) < 60
    assert later(clock.now(), 60) > clock.now()

from __future__ import annotations

import time

import pytest

from elastic_core.clock import Clock, SystemClock, later, swapped
from elastic_core.errors import RendezvousConnectionError


def test_system_clock_is_monotonic_and_has_the_time():
    clock: Clock = SystemClock()
    assert clock.now() <= clock.now()
    assert abs(clock.timestamp() - time.time()) < 60
    assert later(clock.now(), 60) > clock.now()


def test_writer_that_always_loses_gives_up():
    tries = []
    message = "^the state: could not write within 4 attempts, because other writers were always faster$"
    with pytest.raises(RendezvousConnectionError, match=message):
        swapped(lambda: tries.append(1), 4, "the state")
    assert len(tries) == 4

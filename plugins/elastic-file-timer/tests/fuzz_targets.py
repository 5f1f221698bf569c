"""Fuzz targets of elastic-file-timer. See `tests/fuzz/targets.py`."""

from __future__ import annotations

import os

from elastic_file_timer.request import FileTimerRequest, Lines
from elastic_file_timer.timer_table import TimerTable
from elastic_testing import FakeClock
from fuzz.targets import DEEP, target

from elastic_core.text import printable

_TIMER = FileTimerRequest(os.getpid(), "scope", 1_700_000_010.0, 9, "job", None, 5.0).to_json().encode()


@target((), _TIMER + b"\n", _TIMER[:30] + _TIMER + b"\n", _TIMER.replace(b"1700000010.0", b"-1") + b"\n", DEEP)
def timer_pipe(data):
    """Data from any process in the timers' pipe, in two pieces."""
    clock = FakeClock()
    table, lines = TimerTable("job", clock, most=8), Lines()
    for piece in (data[: len(data) // 2], data[len(data) // 2 :], b"\n"):
        table.register(table.read(lines.feed(piece)))
    table.next_deadline()
    clock.advance(1e6)
    for request in table.expired(clock.now()):
        assert printable(request.scope_id) == request.scope_id
    table.forget({os.getpid()})

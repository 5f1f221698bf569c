"""The API for training scripts: timers for code that may hang, and heartbeats. It needs only the standard library."""

from typing import TYPE_CHECKING

from elastic_core.support.imports import lazy_names
from elastic_core.watchdog.beat import beat

if TYPE_CHECKING:
    from elastic_core.watchdog.guard import TimerClient, TimerRequest, configure, expires
    from elastic_core.watchdog.timer_server import (
        LocalTimerClient,
        LocalTimerServer,
        MultiprocessingRequestQueue,
        RequestQueue,
        TimerServer,
    )

__all__ = [
    "LocalTimerClient",
    "LocalTimerServer",
    "MultiprocessingRequestQueue",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "beat",
    "configure",
    "expires",
]
if not TYPE_CHECKING:
    __getattr__, _ = lazy_names(
        __name__,
        {
            "elastic_core.watchdog.guard": "TimerClient TimerRequest configure expires",
            "elastic_core.watchdog.timer_server": (
                "LocalTimerClient LocalTimerServer MultiprocessingRequestQueue RequestQueue TimerServer"
            ),
        },
    )

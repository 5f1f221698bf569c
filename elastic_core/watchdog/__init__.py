"""The API for training scripts: timers around code that may hang, and heartbeats. It needs only the standard
library."""

from elastic_core.watchdog.beat import beat
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

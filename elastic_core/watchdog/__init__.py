"""What a training script imports to be watched: timers around what may hang, and beats. Needs nothing but the
standard library."""

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

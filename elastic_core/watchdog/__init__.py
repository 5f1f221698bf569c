"""What a training script imports to be watched: timers around what may hang, and beats. Needs nothing but the
standard library."""

from elastic_core.watchdog.beat import beat
from elastic_core.watchdog.guard import TimerClient, TimerRequest, TimerServer, configure, expires

__all__ = ["TimerClient", "TimerRequest", "TimerServer", "beat", "configure", "expires"]

"""What a training script imports to be watched: timers around what may hang, and beats. Needs neither torch nor
anything else that is installed beside it."""

from elastic_core.watchdog.beat import beat
from elastic_core.watchdog.guard import configure, expires
from elastic_core.watchdog.timer import TimerClient, TimerRequest, TimerServer

__all__ = ["TimerClient", "TimerRequest", "TimerServer", "beat", "configure", "expires"]

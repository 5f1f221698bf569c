"""The API for training scripts: timers for code that may hang, and heartbeats. Needs only the standard library."""

from typing import TYPE_CHECKING

from elastic_core.support.imports import lazy_names
from elastic_core.watchdog.beat import beat as beat

if TYPE_CHECKING:
    from elastic_core.watchdog.guard import TimerClient as TimerClient
    from elastic_core.watchdog.guard import TimerRequest as TimerRequest
    from elastic_core.watchdog.guard import configure as configure
    from elastic_core.watchdog.guard import expires as expires
    from elastic_core.watchdog.timer_server import LocalTimerClient as LocalTimerClient
    from elastic_core.watchdog.timer_server import LocalTimerServer as LocalTimerServer
    from elastic_core.watchdog.timer_server import MultiprocessingRequestQueue as MultiprocessingRequestQueue
    from elastic_core.watchdog.timer_server import RequestQueue as RequestQueue
    from elastic_core.watchdog.timer_server import TimerServer as TimerServer
else:
    __getattr__, _names = lazy_names(__name__)
    __all__ = ["beat", *_names()]

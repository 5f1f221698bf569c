"""Watchdog timers over a named pipe: the watchdog file of elastic-core.

In a script that already uses torch's timers::

    import elastic_file_timer as timer
    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with timer.expires(after=60): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_core.watchdog import configure, expires
from elastic_file_timer.client import FileTimerClient
from elastic_file_timer.request import FileTimerRequest

if TYPE_CHECKING:
    from elastic_file_timer.server import FileTimerServer

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer", "configure", "expires"]


def __getattr__(name: str) -> Any:
    """Workers do not need the server."""
    if name != "FileTimerServer":
        raise AttributeError(f"module 'elastic_file_timer' has no attribute {name!r}")
    from elastic_file_timer.server import FileTimerServer

    return FileTimerServer

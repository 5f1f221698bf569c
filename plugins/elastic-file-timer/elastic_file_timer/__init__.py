"""The `file` watchdog of elastic-core, whose timers use a named pipe.

In a script that already uses torch's timers::

    import elastic_file_timer as timer
    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with timer.expires(after=60): ...
"""

from typing import TYPE_CHECKING

from elastic_core.plugin import lazy_names

if TYPE_CHECKING:
    from elastic_core.plugin import configure, expires
    from elastic_file_timer.client import FileTimerClient
    from elastic_file_timer.request import FileTimerRequest
    from elastic_file_timer.server import FileTimerServer

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer", "configure", "expires"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__)

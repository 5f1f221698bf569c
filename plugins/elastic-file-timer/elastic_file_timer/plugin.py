"""What elastic-file-timer brings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_core.plugin import Option, WatchdogRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Watchdog

_LOOK_EVERY = 1.0
"""Seconds. Clients wait longer than this for a pipe that was removed."""

_PATH = Option("path", str, None, "the pipe; TORCHELASTIC_TIMER_FILE, or a new one in a private folder, where unset")


@hookimpl
def elastic_watchdogs() -> list[WatchdogRecord]:
    return [WatchdogRecord("file", "timers over a named pipe", _create, (_PATH,))]


def _create(context: Context) -> Watchdog:
    from elastic_file_timer.server import FileTimerServer

    return FileTimerServer(context.options["path"] or _inherited(), context.run_id, _LOOK_EVERY)


def _inherited() -> str | None:
    """The pipe that the user has named. In an agent that a worker starts it is that of the worker's watchdog."""
    from elastic_core.plugin import CLIENT_VARIABLE

    return None if CLIENT_VARIABLE in os.environ else os.environ.get("TORCHELASTIC_TIMER_FILE") or None

"""Registers the `file` watchdog."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from elastic_core.plugin import Option, WatchdogRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.plugin import Context, Watchdog

_LOOK_EVERY = 1.0
"""Seconds between two checks of the pipe. If the pipe was removed, clients wait longer than this interval for a new
one."""

_PATH = Option("path", str, None, "path of the pipe; defaults to TORCHELASTIC_TIMER_FILE or a pipe in a private folder")


@hookimpl
def elastic_watchdogs() -> list[WatchdogRecord]:
    return [WatchdogRecord("file", "timers over a named pipe", _create, (_PATH,))]


def _create(context: Context) -> Watchdog:
    from elastic_file_timer.server import FileTimerServer

    return FileTimerServer(context.options["path"] or _inherited(), context.run_id, _LOOK_EVERY)


def _inherited() -> str | None:
    """Return the user's TORCHELASTIC_TIMER_FILE, or None if it is not set. In an agent started by a worker, also return
    None, because the variable names that worker's pipe."""
    from elastic_core.plugin import CLIENT_VARIABLE

    return None if CLIENT_VARIABLE in os.environ else os.environ.get("TORCHELASTIC_TIMER_FILE") or None

"""Heartbeats: a worker reports progress to its agent by writing the time to a file.

The agent only checks whether the file's content has changed, and measures time on its own clock."""

from __future__ import annotations

import functools
import os
import struct
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.support.files import PageFile, mapped

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

BEAT_FILE = "ELASTIC_BEAT_FILE"
"""The environment variable that contains the path of the worker's heartbeat file."""

_CONTENT = struct.Struct("d")
_CLOCK = SystemClock()


def beat() -> None:
    """Report that this worker is making progress. Call this more often than once per `--hang-timeout`, for example in
    every step.

    A call takes about a microsecond and never raises. Any thread of the worker, and any of its child processes, may
    call this function. Without `--hang-timeout`, it has no effect."""
    _CONTENT.pack_into(_page(), 0, _CLOCK.now())


@functools.cache
def _page() -> mmap.mmap | bytearray:
    return mapped(BEAT_FILE, _CONTENT.size)


os.register_at_fork(after_in_child=_page.cache_clear)  # a forked child may be a worker with another file


class HeartbeatFile(PageFile):
    """The agent's side of one worker's heartbeat file. Raises the same OSError as `PageFile`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, bytes(_CONTENT.size))

    def latest(self) -> int:
        """Return a number that changes with every heartbeat. The number is 0 before the first heartbeat."""
        return int.from_bytes(self.read(), "little")

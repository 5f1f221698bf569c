"""A worker's heartbeat: the worker reports progress to its agent by writing the time to a file.

The agent only checks whether the content has changed, and uses its own clock. The worker writes through a memory
mapping, which needs no system call and no open descriptor (a script may close descriptors that it did not open).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

BEAT_FILE = "ELASTIC_BEAT_FILE"
"""The environment variable that holds the path of the worker's heartbeat file."""

_CONTENT = struct.Struct("d")
_CLOCK = SystemClock()
_page: mmap.mmap | bytearray | None = None


def beat() -> None:
    """Report that this worker is making progress. Call it at least once per `--hang-timeout`, such as in every step.

    A call takes about a microsecond. It may be called from any thread and from the worker's child processes. Without
    `--hang-timeout` it has no effect. It never raises an error.
    """
    page = _page
    _CONTENT.pack_into(_open_page() if page is None else page, 0, _CLOCK.now())


def _open_page() -> mmap.mmap | bytearray:
    """Return the heartbeat file's mapped page, or a private buffer if the process has no such file."""
    global _page
    try:
        _page = _mapped(os.environ[BEAT_FILE])
    except (KeyError, OSError, ValueError):
        _page = bytearray(_CONTENT.size)
    return _page


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != _CONTENT.size:
            raise ValueError(f"{path} is not a heartbeat file")
        return mmap.mmap(fd, _CONTENT.size)
    finally:
        os.close(fd)


def _forget_page() -> None:
    """Forget the page in a forked child, which may itself be a worker with another file."""
    global _page
    _page = None


os.register_at_fork(after_in_child=_forget_page)


class HeartbeatFile:
    """The agent's side: one worker's heartbeat file, created before the worker starts. Not thread-safe.

    Args:
        path: a file that does not exist yet, in a folder that only this user can access.

    Raises:
        OSError: the file cannot be created; no file is left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = bytes(_CONTENT.size)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Allocate the disk space now: if the disk is full, a write through the mapping kills the worker (SIGBUS).
            os.posix_fallocate(self._fd, 0, _CONTENT.size)
            os.pwrite(self._fd, self._seen, 0)
        except OSError:
            self.close()
            raise

    def changed(self) -> bool:
        """Return whether the worker has sent a heartbeat since the last call. Works even if the file was deleted."""
        content = os.pread(self._fd, _CONTENT.size, 0)
        if len(content) < _CONTENT.size or content == self._seen:
            return False
        self._seen = content
        return True

    def close(self) -> None:
        """Remove the file, after which the worker's heartbeats have no effect. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self.path.unlink()

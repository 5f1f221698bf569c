"""How a worker tells its agent that it makes progress: it writes the time into a file of its own.

The agent only checks whether the content has changed, on its own clock; it never reads the time. The worker writes
through a memory mapping, which takes no system call and no descriptor (a script may close those and reuse them).
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
"""The variable in a worker's environment that names its file."""

_CONTENT = struct.Struct("d")
_CLOCK = SystemClock()
_page: mmap.mmap | bytearray | None = None


def beat() -> None:
    """Say that this worker makes progress: at least once in every `--hang-timeout`, for example once in every step.

    A call takes about a microsecond. Any thread may call it, and so may processes that the worker started. Without
    `--hang-timeout` it does nothing. It never raises.
    """
    page = _page
    _CONTENT.pack_into(_open_page() if page is None else page, 0, _CLOCK.now())


def _open_page() -> mmap.mmap | bytearray:
    """The page of the file; for a process without such a file, some memory of its own."""
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
            raise ValueError(f"{path} is not a file for beats")
        return mmap.mmap(fd, _CONTENT.size)
    finally:
        os.close(fd)


def _forget_page() -> None:
    """A forked child may be a worker of its own, with another file."""
    global _page
    _page = None


os.register_at_fork(after_in_child=_forget_page)


class BeatFile:
    """The agent's side: the file of one worker, made before the worker starts. For one thread.

    Args:
        path: a file that does not exist yet, in a folder that is private to the user.

    Raises:
        OSError: the file cannot be made; nothing is left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = bytes(_CONTENT.size)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Space on the disk is taken now: a write through a mapping that finds none kills the worker (SIGBUS).
            os.posix_fallocate(self._fd, 0, _CONTENT.size)
            os.pwrite(self._fd, self._seen, 0)
        except OSError:
            self.close()
            raise

    def changed(self) -> bool:
        """Whether the worker has beaten since the last call. Takes microseconds; a deleted file does no harm."""
        content = os.pread(self._fd, _CONTENT.size, 0)
        if len(content) < _CONTENT.size or content == self._seen:
            return False
        self._seen = content
        return True

    def close(self) -> None:
        """Remove the file. Idempotent. A worker that still runs may go on beating, without effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self.path.unlink()

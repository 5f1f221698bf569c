"""A small file that a worker maps into its memory, and that its agent reads and writes.

Access to a mapping needs no system call. It also needs no open descriptor, and a script may close descriptors that it
did not open."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def mapped(variable: str, size: int) -> mmap.mmap | bytearray:
    """Map the file whose path is in this environment variable. If there is no such file, or its size is not `size`
    bytes, return a private buffer of zeros, so that workers also run without an agent."""
    with contextlib.suppress(KeyError, OSError, ValueError):
        fd = os.open(os.environ[variable], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_size == size:
                return mmap.mmap(fd, size)
        finally:
            os.close(fd)
    return bytearray(size)


class PageFile:
    """The agent's side of one worker's file, created before the worker starts. Not thread-safe.

    Args:
        path: a file that does not exist yet, in a folder that only this user can access.
        content: the initial content, which determines the size.

    Raises:
        OSError: the file cannot be created. No file is left behind.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self._size = len(content)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Allocate the disk space now: if the disk is full, a write through the mapping kills the worker (SIGBUS).
            os.posix_fallocate(self._fd, 0, self._size)
            os.pwrite(self._fd, content, 0)
        except OSError:
            self.close()
            raise

    def read(self) -> bytes:
        """Return the content, even if the file has been deleted. The result is empty if the worker has truncated the
        file."""
        content = os.pread(self._fd, self._size, 0)
        return content if len(content) == self._size else b""

    def write(self, content: bytes, offset: int) -> None:
        """Overwrite a part of the content."""
        os.pwrite(self._fd, content, offset)

    def close(self) -> None:
        """Remove the file. Later writes by the worker have no effect. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                self.path.unlink()

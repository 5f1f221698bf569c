"""The server's end of the pipe. The server creates, checks and removes the pipe."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.plugin import distrust_reason, get_logger
from elastic_file_timer import folder
from elastic_file_timer.request import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOM = 1 << 20
"""The size of the pipe in bytes, which is the kernel's limit for unprivileged users. The pipe can hold thousands of
requests."""

_AT_ONCE = 1 << 16
_MOST_READERS = 8


class PipeReader:
    """Reads lines from a named pipe. The descriptor is also open for writing, so that the reader does not see
    end-of-file when the last client closes the pipe."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._lines = Lines()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _ROOM)

    def read(self) -> Iterator[list[bytes]]:
        """Yield the received lines in batches. Reads at most as much data as the pipe can hold, so that a flood of data
        does not delay the server's timers."""
        for _ in range(_ROOM // _AT_ONCE):
            try:
                data = os.read(self.fd, _AT_ONCE)
            except BlockingIOError:
                return
            yield self._lines.feed(data)
            if len(data) < _AT_ONCE:
                return

    def lies_at(self, path: Path) -> bool:
        """Return whether `path` is this pipe. Raises FileNotFoundError if nothing exists at `path`."""
        return os.path.samestat(os.fstat(self.fd), path.lstat())


class TimerPipe:
    """The server's named pipe.

    Args:
        path: the path of the pipe (default: in a new private folder, which is removed with the pipe).
    """

    def __init__(self, path: Path | None) -> None:
        self._given = path
        self._made_in: Path | None = None
        self.path = path or Path()
        self.readers: list[PipeReader] = []

    def open(self) -> None:
        """Create the pipe. An unused pipe at the same path is replaced.

        Raises:
            ConfigurationError: the path cannot be used. An existing file is not changed.
        """
        if self._given is None:
            self._made_in = folder.make_private()
            self.path = self._made_in / "timers"
        else:
            folder.check(self.path)
            _make_room(self.path)
        try:
            self._make()
        except OSError as error:
            self.close()
            raise folder.refused(self.path, f"it cannot be created: {error.strerror or error}") from error

    def scratch(self) -> list[str]:
        """Return a list with the pipe's private folder, or an empty list if there is none."""
        return [] if self._made_in is None else [str(self._made_in)]

    def look(self) -> str:
        """Check the pipe, and create it again if it was removed. Returns why clients cannot find the pipe, or an empty
        string if they can. Clients that still have the old pipe open are also served."""
        try:
            if self.readers[-1].lies_at(self.path):
                return ""
            return f"the pipe {self.path} was replaced by another file"
        except OSError:
            return self._make_again()

    def close(self) -> None:
        """Close and remove the pipe. Idempotent."""
        with contextlib.suppress(OSError):
            if self.readers and self.readers[-1].lies_at(self.path):
                self.path.unlink()
        self.drop()
        if self._made_in is not None:
            with contextlib.suppress(OSError):
                self._made_in.rmdir()

    def drop(self) -> None:
        """Close the pipe without removing it. Called in a forked child, which must not look like a reader of the
        pipe."""
        for reader in self.readers:
            os.close(reader.fd)
        self.readers.clear()

    def _make(self) -> None:
        os.mkfifo(self.path, 0o600)
        self.readers.append(PipeReader(self.path))
        if len(self.readers) > _MOST_READERS:  # clients of the old pipe get an error, and open the new one
            os.close(self.readers.pop(0).fd)

    def _make_again(self) -> str:
        try:
            if self._made_in is not None:
                folder.make_again(self._made_in)
            elif why := distrust_reason(self.path.parent):
                raise PermissionError(errno.EPERM, why)
            self._make()
        except OSError as error:
            return f"the pipe {self.path} was removed and cannot be created again: {error.strerror or error}"
        get_logger().warning("timer pipe recreated", path=str(self.path))
        return ""


def _make_room(path: Path) -> None:
    """Remove this user's pipe if no process reads it. Raises ConfigurationError for any other existing file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISFIFO(status.st_mode):
        raise folder.refused(path, "the existing file is not a pipe")
    if status.st_uid != os.geteuid():
        raise folder.refused(path, f"it belongs to user {status.st_uid}")
    if _is_read(path):
        raise folder.refused(path, "another process is reading it")
    path.unlink(missing_ok=True)


def _is_read(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError:
        return False
    return True

"""The server's end of the pipe: made, looked after and removed here."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.plugin import get_logger, why_untrusted
from elastic_file_timer import folder
from elastic_file_timer.request import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOM = 1 << 20
"""Bytes that wait for the server: some thousands of requests. As much as the kernel allows everybody."""

_AT_ONCE = 1 << 16
_MOST_READERS = 8


class PipeReader:
    """An open pipe. Its descriptor can write as well: so there is always a writer, and the end of the last client is
    not the end of the pipe."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._lines = Lines()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _ROOM)

    def read(self) -> Iterator[list[bytes]]:
        """The lines that came in, but no more than the pipe holds: a flood must not keep the server from its timers."""
        for _ in range(_ROOM // _AT_ONCE):
            try:
                data = os.read(self.fd, _AT_ONCE)
            except BlockingIOError:
                return
            yield self._lines.feed(data)
            if len(data) < _AT_ONCE:
                return

    def lies_at(self, path: Path) -> bool:
        """Whether clients that open `path` come here. Raises FileNotFoundError if nothing is there."""
        return os.path.samestat(os.fstat(self.fd), path.lstat())


class TimerPipe:
    """Args:
    path: where to make it; None for a private folder of its own, which is removed with it.
    """

    def __init__(self, path: Path | None) -> None:
        self._given = path
        self._made_in: Path | None = None
        self.path = path or Path()
        self.readers: list[PipeReader] = []

    def open(self) -> None:
        """Make it.

        Raises:
            ConfigurationError: it cannot be there; what is there stays untouched, unless it is a pipe that somebody
                left behind.
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
            raise folder.refused(self.path, f"that it can be made, found: {error.strerror or error}") from error

    def scratch(self) -> list[str]:
        """The folder that it made for itself."""
        return [] if self._made_in is None else [str(self._made_in)]

    def look(self) -> str:
        """Why clients do not find it any more; empty while they do. Makes it again if somebody has removed it; clients
        that have it open are heard all the same."""
        try:
            if self.readers[-1].lies_at(self.path):
                return ""
            return f"something else has taken the place of the pipe {self.path}"
        except OSError:
            return self._make_again()

    def close(self) -> None:
        """Close and remove it. Idempotent."""
        with contextlib.suppress(OSError):
            if self.readers and self.readers[-1].lies_at(self.path):
                self.path.unlink()
        for reader in self.readers:
            os.close(reader.fd)
        self.readers.clear()
        if self._made_in is not None:
            with contextlib.suppress(OSError):
                self._made_in.rmdir()

    def drop(self) -> None:
        """Close it and leave it where it is: in a forked child, which must not pass for its reader."""
        for reader in self.readers:
            os.close(reader.fd)
        self.readers.clear()

    def _make(self) -> None:
        os.mkfifo(self.path, 0o600)
        self.readers.append(PipeReader(self.path))
        if len(self.readers) > _MOST_READERS:  # clients that have it still open find out, and open the new one
            os.close(self.readers.pop(0).fd)

    def _make_again(self) -> str:
        try:
            if self._made_in is not None:
                folder.make_again(self._made_in)
            elif why := why_untrusted(self.path.parent):
                raise PermissionError(errno.EPERM, why)
            self._make()
        except OSError as error:
            return f"the pipe {self.path} was removed and cannot be made again: {error.strerror or error}"
        get_logger().warning("timer pipe made again", path=str(self.path))
        return ""


def _make_room(path: Path) -> None:
    """Remove a pipe of ours that nobody reads; complain of anything else."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISFIFO(status.st_mode):
        raise folder.refused(path, "nothing or a pipe, found something else, which is left alone")
    if status.st_uid != os.geteuid():
        raise folder.refused(path, f"nothing or a pipe of yours, found one of user {status.st_uid}")
    if _is_read(path):
        raise folder.refused(path, "one that no other agent uses, found that somebody reads it")
    path.unlink(missing_ok=True)


def _is_read(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError:
        return False
    return True

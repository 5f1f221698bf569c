"""Sinks: where a worker's bytes end up. A file that fails reports it once and hands back what it could not take."""

from __future__ import annotations

import collections
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TAIL_LINES = 20
TAIL_BYTES = 16 * 1024
_PIPE_BUF = select.PIPE_BUF

Report = Callable[[str, OSError], None]
"""Called once with the path of a file that can no longer be written, and the error."""


class FileSink:
    """A log file, appended to. Opening raises OSError; later errors are reported once and end the file."""

    def __init__(self, path: Path, report: Report) -> None:
        self._path = path
        self._report = report
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, data: bytes) -> bytes:
        """Write all of `data`; returns the part that could not be written, empty when all is well."""
        rest = memoryview(data)
        while rest and self._file is not None:
            try:
                rest = rest[os.write(self._file, rest) :]
            except OSError as error:
                self.close()
                self._report(str(self._path), error)
        return bytes(rest)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class ConsoleSink:
    """The agent's own stdout or stderr. When its reader has gone away, output to it ends quietly."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self.written = 0  # bytes; tells a slow reader from one that has stopped

    def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for a slow reader."""
        rest = memoryview(data)
        while rest and self._fd is not None:
            try:
                done = os.write(self._fd, rest[: _piece(rest)])
                self.written += done
                rest = rest[done:]
            except BlockingIOError:
                _wait_writable(self._fd)
            except OSError:
                self._fd = None


def _piece(data: memoryview) -> int:
    """How much to write at once: whole lines, but no more than a pipe takes or refuses as one if that can be."""
    end = bytes(data[:_PIPE_BUF]).rfind(b"\n") + 1 if len(data) > _PIPE_BUF else len(data)
    return end or _PIPE_BUF


def _wait_writable(fd: int) -> None:
    waiter = select.poll()  # and not select: its file descriptors end at 1023
    waiter.register(fd, select.POLLOUT)
    waiter.poll()


class TailSink:
    """The last lines, at most TAIL_LINES of them and about TAIL_BYTES."""

    def __init__(self) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)

    def write_line(self, line: bytes) -> None:
        """Take one line with or without its end; blank lines are dropped."""
        text = line.rstrip(b"\r\n")
        if text.strip():
            self._lines.append(text[-TAIL_BYTES // TAIL_LINES :])

    def lines(self) -> tuple[str, ...]:
        """The lines as text, oldest first."""
        lines = tuple(self._lines)  # in one step: a pump that was given up may still add to them
        return tuple(line.decode(errors="replace") for line in lines)

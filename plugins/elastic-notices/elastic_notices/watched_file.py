"""The `file` source. The node must leave while a file exists."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.plugin import ConfigurationError, Problem, SystemClock
from elastic_notices.decoding import MOST_BYTES, clean_reason, make_notice, parse_time
from elastic_notices.polling import interval, poll

if TYPE_CHECKING:
    from elastic_core.plugin import Clock, Context, Duration, Notice, Notices, Pause

_EVERY: Duration = 1.0
_SETTLES: Duration = 1.0


class Content(NamedTuple):
    """A file's text, and the time of the last write to the file, in seconds since the epoch."""

    text: str
    written: float


def watch_file(context: Context, pause: Pause) -> Notices:
    """Yield the notice in the file `--notice-file` while the file exists."""
    path = context.options["notice_file"]
    if not path:
        raise ConfigurationError(Problem("--notices", "the source 'file' requires --notice-file=FILE"))
    clock = SystemClock()

    def ask() -> Notice | None:
        found = read_settled(path, pause, clock)
        return None if found is None else decode(found.text, clock.timestamp())

    return poll("file", ask, context, pause, interval(context, _EVERY))


def decode(text: str, now: float) -> Notice:
    """Decode a file's text. The first line may be a time, and the rest is the reason. Without a time, the node must
    leave immediately."""
    first, _, rest = text.partition("\n")
    default = "the notice file exists"
    try:
        return make_notice(clean_reason(rest, default), parse_time(first.strip()), now)
    except ValueError:  # it is not a time, or not a plausible one
        return make_notice(clean_reason(text, default), None, now)


def read_settled(path: str, pause: Pause, clock: Clock) -> Content | None:
    """Return the file's content, or None if there is no file. If the file was written to less than a second ago, wait
    and read it again. The file may still be empty, which would mean that the node must leave immediately."""
    found = read(path)
    if found is not None and 0 <= clock.timestamp() - found.written < _SETTLES:
        pause(_SETTLES)
        return read(path)
    return found


def read(path: str) -> Content | None:
    """Return the file's content, or None if there is no file. Raises OSError if the file cannot be read or is too long,
    and ValueError if it is not text."""
    try:
        # O_NONBLOCK, because opening a pipe would wait for a writer
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        with open(fd, "rb", closefd=False) as file:  # refuses folders, and would not close their descriptor
            body = file.read(MOST_BYTES + 1)
    finally:
        os.close(fd)
    if len(body) > MOST_BYTES:
        raise OSError(f"{path} is longer than {MOST_BYTES} bytes")
    return Content(body.decode(), status.st_mtime)

"""Writes the agent's log as text or JSON. docs/reference/log-events.md lists the events that the core and this
project's plugins log. Third-party plugins may log other events.

Logging neither uses nor changes an application's own structlog configuration. structlog is imported only for the first
line, because importing it takes longer than importing the whole core. Logging never raises, even if stderr is broken.
It never blocks for long: if the reader of the log stalls, lines are dropped and counted.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import threading
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, Concatenate, TextIO

from elastic_core.clock import SystemClock
from elastic_core.errors import InvalidPlugin, described_error
from elastic_core.text import in_one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import EventDict

    from elastic_core.clock import Clock, Duration

EventName = str
"""The name of an event. docs/reference/log-events.md lists the names."""

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_COLORS = {"debug": "\x1b[2m", "info": "", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
_PLAIN = "\x1b[0m"
_PATIENCE: Duration = 0.5  # see `configure`
_lock = threading.RLock()


def _renew_lock() -> None:
    """Replace the lock in a forked child, because another thread may have held the inherited one."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _writer(level: str) -> Callable[Concatenate[Logger, EventName, ...], None]:
    def method(self: Logger, event: EventName, /, **fields: Any) -> None:
        _output.emit(level, event, {**self._bound, **fields})

    return method


class Logger:
    """Logs events with fields, in the format that `configure` sets. `exc_info` adds a traceback. The text format shows
    the field `stack` on separate lines, like a traceback."""

    __slots__ = ("_bound",)

    def __init__(self, bound: Mapping[str, Any]) -> None:
        self._bound = bound

    def bind(self, **fields: Any) -> Logger:
        """Return a logger that adds these fields to every line."""
        return Logger({**self._bound, **fields})

    debug, info, warning, error, critical = map(_writer, LEVELS)

    def exception(self, event: EventName, /, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self.error(event, **{"exc_info": True, **fields})


def get_logger(**fields: Any) -> Logger:
    """Return a logger that adds these fields to every line. Nothing is set up until the first line is written."""
    return Logger(fields)


class tolerating:  # noqa: N801 - used like contextlib.suppress
    """Logs any error that a plugin or the user's code raises in this context, even SystemExit, so that it does not end
    the job. Only KeyboardInterrupt is passed on. The reason in the log begins with `doing`."""

    def __init__(self, event: EventName = "plugin failed", doing: str = "it", /, **fields: Any) -> None:
        self._event, self._doing, self._fields = event, doing, fields

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is None or isinstance(error, KeyboardInterrupt):
            return False
        if isinstance(error, InvalidPlugin):
            get_logger().warning(self._event, **self._fields, reason=str(error))
        else:
            reason = f"{self._doing} raised {described_error(error)}"
            get_logger().warning(self._event, **self._fields, reason=reason, exc_info=error)
        return True


def configure(
    format: str = "human",  # noqa: A002 - the users' term
    level: str = "info",
    stream: TextIO | None = None,
    clock: Clock | None = None,
    patience: Duration = _PATIENCE,
) -> None:
    """Set the format and the destination of all loggers. Before the first call, lines go to Python's logger
    `elastic_core`, and are shown only if that logger has a handler (but see `show_unless_configured`).

    Args:
        format: `json` writes one object per line. `human` writes one line per event, and indents any traceback below
            it. Times are UTC in ISO 8601, except that `human` shows local times on a terminal.
        level: the lowest level to write, one of `LEVELS`.
        stream: the destination (default: the current `sys.stderr`).
        clock: provides the timestamps.
        patience: how many seconds to wait for a stalled reader. After that, lines are dropped until it has caught up.
    """
    global _output
    _output = _Output(format, LEVELS[level], Sink(stream, patience), clock or SystemClock())


class Sink:
    """Writes to a stream without blocking the agent. If the reader stalls (a pager, Ctrl-S), lines are dropped."""

    def __init__(self, stream: TextIO | None = None, patience: Duration = _PATIENCE) -> None:
        self._stream = stream
        self._patience = patience
        self._stalled = False
        self._cut = False
        self._dropped = 0

    @property
    def stream(self) -> TextIO | None:
        return self._stream if self._stream is not None else sys.stderr

    def write(self, line: str) -> None:
        stream = self.stream
        if stream is None:
            return
        try:
            with _lock:
                self._write(stream, line + "\n")
        except Exception:  # noqa: BLE001 - the error cannot be logged, and must not end the job
            pass

    debug = info = warning = error = critical = write

    def take_dropped(self) -> int:
        """Return the number of dropped lines and reset it. Until the stream can accept a line, return 0 instead."""
        with _lock:
            stream = self.stream
            if not self._dropped or stream is None or not self._takes(stream):
                return 0
            dropped, self._dropped = self._dropped, 0
            return dropped

    def _write(self, stream: TextIO, text: str) -> None:
        if self._cut:
            text = "\n" + text
        for begun, piece in enumerate(_pieces(text)):
            if not self._takes(stream):
                self._cut = self._cut or begun > 0
                self._dropped += 1
                return
            stream.write(piece)
            stream.flush()
        self._cut = False

    def _takes(self, stream: TextIO) -> bool:
        """Return whether a piece can be written without blocking. Wait for the reader unless it has already stalled."""
        fd = _pollable(stream)
        if fd is None:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        self._stalled = not poll.poll(0 if self._stalled else self._patience * 1000)
        return not self._stalled


def _pollable(stream: TextIO) -> int | None:
    """Return the descriptor of a stream that may block (a pipe, socket or terminal), or None for any other stream."""
    try:
        fd = stream.fileno()
        return None if stat.S_ISREG(os.fstat(fd).st_mode) else fd
    except (OSError, ValueError, AttributeError):
        return None


def _pieces(text: str) -> list[str]:
    """Split the text into parts that a pipe accepts without blocking. An escaped character takes up to ten bytes."""
    size = select.PIPE_BUF if text.isascii() else select.PIPE_BUF // 10
    return [text[start : start + size] for start in range(0, len(text), size)]


class _Output:
    def __init__(self, format: str, threshold: int, sink: Sink, clock: Clock) -> None:  # noqa: A002
        self._format = format
        self._threshold = threshold
        self._sink = sink
        self._clock = clock
        self._logger = cache(self._made)

    def emit(self, level: str, event: EventName, fields: dict[str, Any]) -> None:
        if LEVELS[level] < self._threshold:
            return
        try:
            if dropped := self._sink.take_dropped():
                self._logger().warning("lines dropped", lines=dropped)
            getattr(self._logger().bind(**fields), level)(event)
        except Exception as error:  # noqa: BLE001 - a field that cannot be rendered must not end the job
            self._sink.write(f"{event} (fields not shown: {type(error).__name__})")

    def _made(self) -> Any:
        """Create a structlog logger that accepts all levels, so that the number of dropped lines is always logged."""
        import structlog
        from structlog.processors import JSONRenderer, format_exc_info

        render = [self._with_head, JSONRenderer()] if self._format == "json" else [self._for_people]
        wrapper = structlog.make_filtering_bound_logger(0)
        return structlog.wrap_logger(self._sink, [format_exc_info, *render], wrapper, dict).bind()

    def _with_head(self, _logger: Sink, level: str, fields: EventDict) -> EventDict:
        head = {"event": fields["event"], "level": level, "timestamp": self._time()}
        return {**head, **fields, **head}

    def _for_people(self, _logger: Sink, level: str, fields: EventDict) -> str:
        event = fields.pop("event")
        if event == "agent finished" and fields.get("state") != "SUCCEEDED":
            fields.pop("reason", None)  # the report that follows shows the reason
        trace = fields.pop("exception", "") or str(fields.pop("stack", ""))
        below = "".join(f"\n    {printable(row)}" for row in trace.splitlines())
        pairs = _pairs(fields)
        when = self._time(is_terminal(self._sink.stream))
        color = _COLORS[level] if shows_colors(self._sink.stream) else ""
        return f"{when} {color}{level:<8} {event}{color and _PLAIN}{':' if pairs else ''}{pairs}{below}"

    def _time(self, local: bool = False) -> str:
        now = datetime.fromtimestamp(self._clock.timestamp(), timezone.utc)
        return f"{now.astimezone():%H:%M:%S}" if local else f"{now.isoformat(timespec='milliseconds')[:-6]}Z"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is an open terminal. The stream may be None or closed."""
    try:
        return stream is not None and stream.isatty()
    except (ValueError, AttributeError):
        return False


def shows_colors(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal with colors and the user has not disabled them (NO_COLOR)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _pairs(fields: Mapping[str, object]) -> str:
    return "".join(f" {key}={_shown(value)}" for key, value in fields.items())


def _shown(value: object) -> str:
    """Format a value on one line, with quotes only if they are needed."""
    if isinstance(value, (bool, type(None))):
        text = json.dumps(value)
    elif isinstance(value, float):
        text = str(value).removesuffix(".0")
    elif isinstance(value, (list, tuple, set, frozenset)):
        text = ",".join(str(item) for item in value)
    else:
        text = str(value)
    bare = text and in_one_line(text) == text and not any(mark in '"=' or mark.isspace() for mark in text)
    return text if bare else printable(json.dumps(text, ensure_ascii=False))


class _Unconfigured:
    """Passes lines to Python's logger `elastic_core` until `configure` is called. By default, the lines are not shown,
    because a library must not write to the console uninvited."""

    def emit(self, level: str, event: EventName, fields: dict[str, Any]) -> None:
        import logging

        logger = logging.getLogger("elastic_core")
        # Without handlers, `logging` itself would print the line.
        if logger.hasHandlers() and logger.isEnabledFor(LEVELS[level]):
            error = fields.pop("exc_info", None)
            pairs = _pairs(fields)
            logger.log(LEVELS[level], "%s", f"{event}{':' if pairs else ''}{pairs}", exc_info=error)


def show_unless_configured() -> None:
    """Show warnings and errors on stderr, unless `configure` has been called. Programs that run jobs need them."""
    if isinstance(_output, _Unconfigured):
        configure(level="warning")


def show_unless_logged() -> None:
    """Show warnings and errors on stderr, unless `configure` has been called or Python's logging has handlers."""
    import logging

    if not logging.getLogger("elastic_core").hasHandlers():
        show_unless_configured()


_output: _Output | _Unconfigured = _Unconfigured()

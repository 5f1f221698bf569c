"""The agent's log, as text or JSON. `EVENTS` lists the events that the core and this project's plugins log. Third-party
plugins may log others.

An application's own structlog configuration is neither used nor changed. structlog is imported only when the first line
is written, because importing it takes longer than importing the whole core. Logging never raises, even if stderr is
broken, and never blocks for long: if the reader of the log stalls, lines are dropped and counted.
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
from typing import TYPE_CHECKING, Any, Concatenate, Literal, TextIO, get_args

from elastic_core.clock import SystemClock
from elastic_core.text import in_one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import EventDict

    from elastic_core.clock import Clock, Duration

EventName = str
"""The name of an event. The core and this project's plugins use only the names in `EVENTS`, as a test checks."""

EVENTS: Mapping[EventName, str] = {
    "run started": "the agent has started; the fields show the most important settings",
    "round formed": "a new round has formed, and this node is a member",
    "template ready": "workers now start warm; the fields show what each worker still imports itself, and why",
    "template lost": "the process from which workers are forked has ended; workers start cold until it is replaced",
    "warm start unavailable": "workers start cold, for the given reason",
    "workers started": "all workers of this node have started",
    "worker exited": "a worker process has ended, successfully or not",
    "worker failed": "a worker of this node failed; logged after the group has stopped",
    "stopping workers": "the agent asks its workers to exit, for the given reason",
    "still waiting": "an operation is taking longer than usual; the fields show what the agent is waiting for",
    "workers stop after the same step": "workers call should_stop; all of them save and stop after this step",
    "no common step": "workers call should_stop, but the nodes could not agree on a step; the workers get SIGTERM",
    "workers have not saved": "half of the grace period is over, and these workers have not stopped at the common step",
    "workers stopped": "all workers of this node have stopped",
    "grace cut short": "the agent killed its workers early, because other nodes may already be forming a round",
    "leftover processes": "processes that were started by workers have outlived the workers; the agent stops them",
    "process would not die": "a process survived SIGKILL and was left behind",
    "guardian lost": "the guardian, which kills the workers if the agent is killed, has died; the agent replaces it",
    "restart decided": "the agent restarts the workers, for the given reason",
    "round over": "for the given reason, the agent stops its workers for good, although none of them failed",
    "round left": "this node leaves the job; `notified` shows whether the other nodes were informed",
    "exit barrier prolonged": "this node has finished but stays, because the other nodes would lose the store",
    "exit barrier left": "this node's workers have succeeded, and the node stops waiting for the other nodes",
    "rendezvous out of reach": "the rendezvous handler could not check for waiting nodes; healthy workers keep running",
    "rendezvous in reach again": "the rendezvous handler can check for waiting nodes again",
    "agent finished": "the agent has finished; the fields show its final state",
    "signal received": "the agent received a signal",
    "notice received": "a notice source reports that this node must leave; the node leaves in `leaves_in` seconds",
    "notice withdrawn": "a notice source has withdrawn its notice before it was due",
    "notice due": "the agent stops its workers and leaves the job, because a notice allows just enough time for this",
    "output lost": "some of a worker's output could not be read or written",
    "setting left out": "a config file or variable is ignored, for the given reason",
    "plugin not blocked": "ELASTIC_DISABLE_PLUGINS contains a name that matches no installed plugin",
    "plugin not installed": "--plugins contains a name that matches no installed distribution with plugins",
    "plugin missing": "a torchrun variable requires a package that is not installed; the run continues without it",
    "plugin failed": "a plugin could not be loaded, lost an option to another plugin, or raised an exception",
    "backend deprecated": "the rendezvous backend still works, but a different one is recommended",
    "spans lost": "OpenTelemetry cannot export spans, for the given reason",
    "observer failed": "a plugin's notification hook raised an exception",
    "contribution failed": "variables that a plugin sets for the workers are ignored, because of the given error",
    "numa binding skipped": "workers run without the requested NUMA binding",
    "log directory made": "the folder for the workers' output was created",
    "worker hangs": "a worker did not release a timer, or made no progress for `--hang-timeout`, and was killed",
    "watchdog lost": "hung workers are no longer detected, for the given reason",
    "timer expired": "a process did not release a timer in time; `action` shows what happens to the process",
    "timer ignored": "a watchdog timer expired, but its process is not in a worker's session",
    "timer request refused": "the watchdog rejected a request; the first of each kind is logged, the rest are counted",
    "timer pipe made again": "the watchdog's pipe was removed while in use, and the watchdog created a new one",
    "health endpoint failed": "the health endpoint could not start, or has failed",
    "health endpoint exposed": "other users can read the health endpoint's responses or secrets, for the given reason",
    "health endpoint started": "the health endpoint listens on the given addresses",
    "metric lost": "a metric handler raised an exception",
    "event lost": "an event handler raised an exception",
    "store out of reach": "the rendezvous store does not answer; healthy workers keep running for the grace period",
    "store is back": "the rendezvous store answers again",
    "store lost its state": "the rendezvous store was restarted empty, and the nodes restore its contents",
    "rendezvous fault": "the rendezvous failed unexpectedly; the step is retried",
    "rendezvous state written": "this node wrote the shared state when a round formed or ended, for the given reason",
    "leads now": "this node is now the leader, because the previous leader has stopped responding",
    "leads no more": "this node is no longer the leader, for the given reason",
    "starting the store": "this node hosts the rendezvous store, which takes a moment to start because it needs torch",
    "store hosted": "the rendezvous store runs in this process",
    "store handed over": "another node now hosts the rendezvous store, because this process is exiting",
    "store taken over": "this process now hosts the rendezvous store, with the previous host's data",
    "store not pointed at": "the store has moved, but the server found at the endpoint does not redirect to it",
    "job split": "some nodes stayed at the endpoint after the store moved; `reason` shows whether this node joins them",
    "rendezvous endpoint is loopback": "the job may have several nodes, but other machines cannot reach the endpoint",
    "rendezvous endpoint is localhost": "other machines must use this machine's name or address to join",
    "workers' store lost": "the workers' store could not start, or its host process ended, for the given reason",
    "file limit raised": "the store's host has raised its limit of open files; the fields show the old and new limits",
    "store served": "elastic serve now serves the store at the given endpoint",
    "store served no more": "elastic serve received a signal, and closes the store and all its connections",
    "etcd server started": "the job's etcd server is running; the fields show its binary and version",
    "etcd server lost": "the job's etcd server has died; the fields show the cause and its last log lines",
    "etcd member waits": "this agent's etcd member cannot start or leave the cluster yet, for the given reason",
    "etcd member joined": "this agent's etcd member has replaced a failed one and is a voting member",
    "etcd member left": "this agent's etcd member was removed from the cluster, which continues without it",
    "entry not readable": "another node's entry is unreadable, so that node cannot join",
    "rendezvous not signed": "a job on several machines has no secret: any client that reaches the endpoint can join",
    "secret not read": "a value is signed with an unknown secret, and the secret file cannot be reloaded",
    "not signed": "a value in the rendezvous store is not signed with the job's secret, and is ignored",
    "state spoilt": "a client outside the job overwrote the job's state; the nodes restore the last known state",
    "store spoilt": "a client outside the job overwrote the job's keys; the job continues under new keys",
    "store flooded": "the hosted store grew too large or had too many connections, and is replaced with an empty one",
    "process grown": "this process uses too much memory, but the store is not the cause",
    "record ignored": "a value under one of the job's keys was not written by its nodes, and is ignored",
    "entry dropped": "the store dropped this node's entry; the node is alive, and registers again",
    "lines dropped": "the reader of this log stalled, and the given number of lines was dropped",
}

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
Format = Literal["human", "json"]
_COLORS = {"debug": "\x1b[2m", "info": "", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
_PLAIN = "\x1b[0m"
_PATIENCE: Duration = 0.5  # seconds to wait for a stalled reader before its lines are dropped
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


def get_logger(**fields: Any) -> Logger:
    """Return a logger that adds these fields to every line. Nothing is set up until the first line is written."""
    return Logger(fields)


def configure(
    format: Format = "human",  # noqa: A002 - the users' term
    level: str = "info",
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> None:
    """Set the format and the destination of all loggers. Before the first call, lines go to Python's logger
    `elastic_core`, and are shown only if that logger has a handler (but see `show_unless_configured`).

    Args:
        format: `json` or `human`. `json` writes one object per line. `human` writes one line per event, followed by any
            traceback, indented; times are local on a terminal, and otherwise UTC in ISO 8601.
        level: the lowest level to write, one of `LEVELS`, in upper or lower case.
        stream: the destination (default: the current `sys.stderr`).
        clock: provides the timestamps.

    Raises:
        ValueError: the format or the level is unknown.
    """
    global _output
    if format not in get_args(Format):
        raise ValueError(f"expected a log format ({', '.join(get_args(Format))}), found {format!r}")
    if level.lower() not in LEVELS:
        raise ValueError(f"expected a log level ({', '.join(LEVELS)}), found {level!r}")
    _output = _Output(format, LEVELS[level.lower()], _Sink(stream), clock or SystemClock())


class _Sink:
    """A stream that does not block the agent. If the reader stalls (a pager, Ctrl-S), lines that it does not read in
    time are dropped."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
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
        """Return and reset the number of dropped lines. Returns 0 while the stream cannot accept a line that reports
        it."""
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
        """Return whether a piece can be written without blocking. Wait for the reader, unless it has already
        stalled."""
        fd = _pollable(stream)
        if fd is None:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        self._stalled = not poll.poll(0 if self._stalled else _PATIENCE * 1000)
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
    def __init__(self, format: Format, threshold: int, sink: _Sink, clock: Clock) -> None:  # noqa: A002
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
        """Create a structlog logger for all levels, so that the count of dropped lines is always written."""
        import structlog
        from structlog.processors import JSONRenderer, format_exc_info

        render = [self._with_head, JSONRenderer()] if self._format == "json" else [self._for_people]
        wrapper = structlog.make_filtering_bound_logger(0)
        return structlog.wrap_logger(self._sink, [format_exc_info, *render], wrapper, dict).bind()

    def _with_head(self, _logger: _Sink, level: str, fields: EventDict) -> EventDict:
        head = {"event": fields["event"], "level": level, "timestamp": self._time()}
        return {**head, **fields, **head}

    def _for_people(self, _logger: _Sink, level: str, fields: EventDict) -> str:
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
    """Return whether the stream is a terminal. None and closed streams are not."""
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
    """Format a value on one line. Quotes are added only where they are needed."""
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
    """Passes lines to Python's logger `elastic_core` until `configure` is called. By default, they are not shown,
    because a library must not write to the console uninvited."""

    def emit(self, level: str, event: EventName, fields: dict[str, Any]) -> None:
        import logging

        logger = logging.getLogger("elastic_core")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())  # otherwise `logging` itself would print unhandled lines
        if logger.isEnabledFor(LEVELS[level]):
            error = fields.pop("exc_info", None)
            pairs = _pairs(fields)
            logger.log(LEVELS[level], "%s", f"{event}{':' if pairs else ''}{pairs}", exc_info=error)


def show_unless_configured() -> None:
    """Show warnings and errors on stderr unless `configure` has been called, because a program that runs a job needs
    them."""
    if isinstance(_output, _Unconfigured):
        configure(level="warning")


_output: _Output | _Unconfigured = _Unconfigured()

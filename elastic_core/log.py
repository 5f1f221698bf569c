"""Log lines of the agent: a closed list of events, for people or as JSON, through a structlog of our own.

structlog's global configuration belongs to the application that hosts us: it is neither read nor changed. structlog
is imported when the first line is written, because importing it costs more than loading all of our own modules.
Nothing here raises into the agent, broken stderr included, except for an event that is not on the list. Nothing
here holds it up for long either: lines that a stalled reader does not take are dropped and counted.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args

from elastic_core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from elastic_core.clock import Clock, Duration

EventName = str
"""One of `EVENTS`. A test finds other names where one is expected, in lines that seldom run as well."""

EVENTS: Mapping[EventName, str] = {
    "run started": "the agent begins, with the configuration that matters",
    "round formed": "this node is a member of a new round",
    "workers started": "all workers of this node run",
    "worker exited": "the process of a worker has ended, well or not",
    "worker failed": "a worker of this node ended with a failure, told when the group has stopped",
    "stopping workers": "the workers are asked to end, for the reason given",
    "still waiting": "something has been waited for for some time; says for whom",
    "workers stopped": "no worker of this node runs any more",
    "leftover processes": "processes that workers started still ran after the workers and are being ended",
    "process would not die": "a process survived SIGKILL and was left behind",
    "guardian lost": "the process that ends the workers if the agent is killed has itself been ended",
    "restart decided": "the group starts again, for the reason given",
    "no restart": "the group failed and does not start again, for the reason given",
    "round over": "the agent stops its workers for good and without a failure of theirs, for the reason given",
    "round left": "this node goes; says whether the other nodes could be told",
    "exit barrier prolonged": "this node is done and stays beyond its time, because the others would lose the store",
    "exit barrier left": "the workers of this node have succeeded, and it does not wait for those of others any longer",
    "rendezvous out of reach": "the handler could not tell whether nodes wait; healthy workers run on",
    "rendezvous in reach again": "the handler answers again",
    "agent finished": "the agent is done, with its final state",
    "signal received": "somebody sent the agent a signal",
    "output lost": "a worker's output could not be written or read to its end",
    "plugin failed": "a plugin could not be loaded, lost an option to another, or broke while it was being stopped",
    "backend deprecated": "the rendezvous backend works as it did, and there is a better one",
    "observer failed": "a plugin raised while it was told of a fact",
    "contribution failed": "a plugin's variables for the workers were left out",
    "numa binding skipped": "workers run without the binding asked for",
    "log directory made": "where the workers' output goes",
    "worker hangs": "a worker did not release a timer, or made no progress for `--hang-timeout`, and was killed",
    "watchdog lost": "workers that hang are not noticed any more, for the reason given",
    "timer expired": "a process did not release a timer in time; what the timer's server does about it itself",
    "timer request refused": "the watchdog got a request of no use; the first of its kind, more are only counted",
    "timer pipe exposed": "others can take away the watchdog's pipe, for the reason given",
    "timer pipe made again": "somebody removed the watchdog's pipe while it was in use",
    "endpoint failed": "the health endpoint could not start or broke",
    "endpoint started": "the health endpoint answers, at the addresses given",
    "metric lost": "a metric handler raised",
    "event lost": "an event handler raised",
    "spans lost": "an exporter of OpenTelemetry raised",
    "store out of reach": "the rendezvous store has not answered for some time; healthy workers run on for the grace",
    "store is back": "the rendezvous store answers again",
    "store lost its state": "the rendezvous store was started anew and gets back what the nodes know",
    "rendezvous fault": "something unexpected went wrong in the rendezvous; it is tried again",
    "rendezvous state written": "this node wrote the agreed state: a round formed or ended, for the reason given",
    "leads now": "this node decides about rounds from now on, because the one that did is silent",
    "leads no more": "this node could not do what a leader does, for the reason given, and leaves it to the others",
    "store hosted": "the rendezvous store runs in this process",
    "endpoint is loopback": "the job may have several nodes, and no other machine can reach the endpoint",
    "file limit raised": "the store's host needs many connections; how many files it may have open now",
    "store served": "the store of elastic serve can be reached at the endpoint given",
    "store served no more": "elastic serve was asked to end, and with it the store and all connections end",
    "etcd server lost": "the etcd that was started for this job has ended by itself; how, and the end of its log",
    "entry not readable": "what another node announced cannot be read; it cannot take part",
    "entry dropped": "the rendezvous store has dropped the entry of this node, which lives; it announces itself anew",
    "lines dropped": "so many lines of this log were not written, because nobody read them",
}
"""Every event that can be logged, and what it means."""

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
Format = Literal["human", "json"]
_COLOURS = {"debug": "\x1b[2m", "info": "", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
_PATIENCE: Duration = 0.5  # seconds for the reader of the log, see `configure`
_lock = threading.RLock()


def _renew_lock() -> None:
    """A forked child must not inherit a lock that another thread held."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Logger:
    """Writes events with fields. Follows `configure`, whenever that is called. `exc_info` adds a traceback; for people,
    `stack` is shown as one is, on lines of its own."""

    __slots__ = ("_bound",)

    def __init__(self, bound: Mapping[str, Any]) -> None:
        self._bound = bound

    def bind(self, **fields: Any) -> Logger:
        """A logger that adds these fields to every line."""
        return Logger({**self._bound, **fields})

    def debug(self, event: EventName, /, **fields: Any) -> None:
        _output.emit("debug", event, {**self._bound, **fields})

    def info(self, event: EventName, /, **fields: Any) -> None:
        _output.emit("info", event, {**self._bound, **fields})

    def warning(self, event: EventName, /, **fields: Any) -> None:
        _output.emit("warning", event, {**self._bound, **fields})

    def error(self, event: EventName, /, **fields: Any) -> None:
        _output.emit("error", event, {**self._bound, **fields})

    def critical(self, event: EventName, /, **fields: Any) -> None:
        _output.emit("critical", event, {**self._bound, **fields})


def get_logger(**fields: Any) -> Logger:
    """A logger that adds these fields to every line. Costs nothing until it writes."""
    return Logger(fields)


def configure(
    format: Format = "human",  # noqa: A002 - the word that users write
    level: str = "info",
    stream: TextIO | None = None,
    clock: Clock | None = None,
    patience: Duration = _PATIENCE,
) -> None:
    """Say how and where all loggers write from now on. Before the first call: for people, warnings and worse, stderr.

    Args:
        format: `human` (one line, a traceback indented below it) or `json` (one object per line).
        level: the least level that is written, in any case; one of `LEVELS`.
        stream: where to; None is `sys.stderr`, as it is at the time of each line.
        clock: gives the timestamps.
        patience: seconds that a line waits for its reader; one that has not read until then is waited for no more.

    Raises:
        ValueError: an unknown format or level; the message names the known ones.
    """
    global _output
    if format not in get_args(Format):
        raise ValueError(f"expected a log format out of {', '.join(get_args(Format))}, found {format!r}")
    if level.lower() not in LEVELS:
        raise ValueError(f"expected a log level out of {', '.join(LEVELS)}, found {level!r}")
    _output = _Output(format, LEVELS[level.lower()], stream, clock or SystemClock(), patience)


class _Sink:
    """What structlog hands finished lines to. A pipe or terminal whose reader has stalled (a pager, Ctrl-S) must not
    hold up the agent: what it does not take in time is dropped."""

    def __init__(self, stream: TextIO | None, patience: Duration) -> None:
        self._stream = stream
        self._patience = patience
        self._stalled = False
        self._cut = False
        self._dropped = 0

    @property
    def stream(self) -> TextIO | None:
        return self._stream if self._stream is not None else sys.stderr

    def colourful(self) -> bool:
        stream = self.stream
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return wanted and stream is not None and stream.isatty()

    def write(self, line: str) -> None:
        stream = self.stream
        if stream is None:
            return
        try:
            with _lock:
                self._write(stream, line + "\n")
        except Exception:  # noqa: BLE001 - nobody is left to be told, and the job matters more than its log
            pass

    debug = info = warning = error = critical = write

    def take_dropped(self) -> int:
        """How many lines were dropped, once there is room for saying so; after that they are told."""
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
        """Whether a piece can be written without blocking, for which a reader has its time unless it has stalled."""
        fd = _pollable(stream)
        if fd is None:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        self._stalled = not poll.poll(0 if self._stalled else self._patience * 1000)
        return not self._stalled


def _pollable(stream: TextIO) -> int | None:
    """The descriptor of a pipe, socket or terminal; None for files and what is none, which make nobody wait."""
    try:
        fd = stream.fileno()
        return None if stat.S_ISREG(os.fstat(fd).st_mode) else fd
    except (OSError, ValueError, AttributeError):
        return None


def _pieces(text: str) -> list[str]:
    """What a pipe that can be written takes at once; a character beyond ASCII may take ten bytes (`\\U0001f525`)."""
    size = select.PIPE_BUF if text.isascii() else select.PIPE_BUF // 10
    return [text[start : start + size] for start in range(0, len(text), size)]


class _Output:
    """One configuration; the structlog logger is made at the first line."""

    def __init__(
        self,
        format: Format,  # noqa: A002
        threshold: int,
        stream: TextIO | None,
        clock: Clock,
        patience: Duration = _PATIENCE,
    ) -> None:
        self._format = format
        self._threshold = threshold
        self._sink = _Sink(stream, patience)
        self._clock = clock
        self._logger: Any = None

    def emit(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if event not in EVENTS:
            raise ValueError(f"{event!r} is not on the list of events; add it to elastic_core.log.EVENTS")
        if LEVELS[level] < self._threshold:
            return
        dropped = self._sink.take_dropped()
        if dropped:
            self._render("warning", "lines dropped", {"lines": dropped})
        self._render(level, event, fields)

    def _render(self, level: str, event: str, fields: dict[str, Any]) -> None:
        try:
            if self._logger is None:
                self._logger = self._make_logger()
            getattr(self._logger, level)(event, **fields)
        except Exception as error:  # noqa: BLE001 - a field that cannot be shown must not end the job
            self._sink.write(f"{event} (fields not shown: {type(error).__name__})")

    def _make_logger(self) -> Any:
        import structlog

        human = _human_renderer(self._sink.colourful())
        renderer = structlog.processors.JSONRenderer() if self._format == "json" else human
        return structlog.wrap_logger(
            self._sink,
            processors=[
                structlog.processors.add_log_level,
                self._stamp,
                structlog.processors.format_exc_info,
                renderer,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(0),
            context_class=dict,
            cache_logger_on_first_use=False,
        ).bind()

    def _stamp(self, _logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Put first what every line has: event, level, time in UTC."""
        return {"event": fields.pop("event"), "level": fields.pop("level"), "timestamp": self._now(), **fields}

    def _now(self) -> str:
        from datetime import datetime, timezone

        now = datetime.fromtimestamp(self._clock.timestamp(), timezone.utc)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _human_renderer(colours: bool) -> Callable[[Any, str, MutableMapping[str, Any]], str]:
    def render(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> str:
        event, level, timestamp = fields.pop("event"), fields.pop("level"), fields.pop("timestamp")
        trace = fields.pop("exception", "") or str(fields.pop("stack", ""))
        below = "".join(f"\n    {_printable(line)}" for line in trace.splitlines())
        pairs = "".join(f" {key}={_shown(value)}" for key, value in fields.items())
        start, end = (_COLOURS[level], "\x1b[0m") if colours and _COLOURS[level] else ("", "")
        return f"{timestamp} {start}{level:<8} {event}{end}{':' if pairs else ''}{pairs}{below}"

    return render


def _shown(value: object) -> str:
    """A value on one line: bare where that is unambiguous, else quoted, with control characters escaped."""
    text = value if isinstance(value, str) else str(value)
    bare = text and text.isprintable() and not any(character in ' "=' for character in text)
    return text if bare else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _printable(line: str) -> str:
    return line if line.isprintable() else line.expandtabs(4).encode("unicode_escape").decode("ascii")


_output = _Output("human", LEVELS["warning"], None, SystemClock())

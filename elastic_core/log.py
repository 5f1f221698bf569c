"""Log lines of the agent, rendered for people or as JSON. `EVENTS` lists the events of the core and of our own plugins.
Third-party plugins may log other events.

An application that hosts the agent may configure structlog for itself: its configuration is neither read nor changed.
structlog is imported for the first line that is written, because the import costs more than that of the whole core.
Logging never raises into the agent, not even when stderr is broken. It never blocks the agent for long either:
lines that a stalled reader does not take are dropped and counted.
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
"""In the core and our own plugins one of `EVENTS`. A test rejects any other name, even in code that rarely runs."""

EVENTS: Mapping[EventName, str] = {
    "run started": "the agent begins, with the configuration that matters",
    "round formed": "this node is a member of a new round",
    "template ready": "workers start warm from now on; says what is left to them, and why",
    "template lost": "the process that workers are forked from has ended; they start cold until there is another one",
    "warm start unavailable": "workers start cold, for the reason given",
    "workers started": "all workers of this node run",
    "worker exited": "the process of a worker has ended, with success or not",
    "worker failed": "a worker of this node failed; logged after the group has stopped",
    "stopping workers": "the workers are asked to end, for the reason given",
    "still waiting": "something has taken some time; says what the agent waits for",
    "workers stopped": "no worker of this node runs any more",
    "grace cut short": "workers were killed before their grace was over, since the others may go on without this node",
    "leftover processes": "processes that workers started still ran after the workers and are being ended",
    "process would not die": "a process survived SIGKILL and was left behind",
    "guardian lost": "the process that ends the workers if the agent is killed has been ended; another one follows",
    "restart decided": "the group starts again, for the reason given",
    "round over": "the agent stops its workers for good, though none of them failed, for the reason given",
    "round left": "this node leaves the job; `notified`: whether the other nodes could be informed",
    "exit barrier prolonged": "this node is done and stays beyond its time, because the others would lose the store",
    "exit barrier left": "the workers of this node have succeeded, and it no longer waits for those of other nodes",
    "rendezvous out of reach": "the handler could not say whether nodes wait; healthy workers run on",
    "rendezvous in reach again": "the handler answers again",
    "agent finished": "the agent is done, with its final state",
    "signal received": "the agent received a signal",
    "output lost": "a worker's output could not be written or read to its end",
    "setting left out": "a config file or a variable was found and not used, for the given reason",
    "plugin not blocked": "ELASTIC_DISABLE_PLUGINS has a name that no installed plugin has",
    "plugin not installed": "--plugins has a name that no installed distribution with plugins has",
    "plugin missing": "a variable of torchrun's asks for what a package that is not installed brings; the run goes on",
    "plugin failed": "a plugin could not be loaded, lost an option to another, or raised when used",
    "backend deprecated": "the rendezvous backend works as before, and there is a better one",
    "spans lost": "OpenTelemetry cannot export spans, for the reason given",
    "observer failed": "a plugin raised in a notification hook",
    "contribution failed": "a plugin's variables for the workers were left out",
    "numa binding skipped": "workers run without the binding asked for",
    "log directory made": "the folder for the workers' output",
    "worker hangs": "a worker did not release a timer, or made no progress for `--hang-timeout`, and was killed",
    "watchdog lost": "workers that hang are no longer noticed, for the reason given",
    "timer expired": "a process did not release a timer in time, and the timer server itself acts on it, as given",
    "timer ignored": "a watchdog timer expired, but its process is in no worker's session",
    "timer request refused": "the watchdog cannot use a request; logged for the first of its kind, others are counted",
    "timer pipe made again": "the watchdog's pipe was removed while in use, and has been made again",
    "health endpoint failed": "the health endpoint could not start, or failed later",
    "health endpoint exposed": "others may read the health endpoint's answers or its secrets, for the reason given",
    "health endpoint started": "the health endpoint answers, at the addresses given",
    "metric lost": "a metric handler raised",
    "event lost": "an event handler raised",
    "store out of reach": "the rendezvous store has not answered for some time; healthy workers run on for the grace",
    "store is back": "the rendezvous store answers again",
    "store lost its state": "the rendezvous store was restarted empty, and gets back what the nodes know",
    "rendezvous fault": "an unexpected error in the rendezvous; the step is tried again",
    "rendezvous state written": "this node wrote the agreed state: a round formed or ended, for the reason given",
    "leads now": "this node decides about rounds from now on, because the leader before it is silent",
    "leads no more": "this node could not do what a leader does, for the reason given, and leaves it to other nodes",
    "starting the store": "this node hosts the rendezvous store, which takes a moment because it needs torch",
    "store hosted": "the rendezvous store runs in this process",
    "store handed over": "this process hosted the rendezvous store and goes; another node serves it from now on",
    "store taken over": "the rendezvous store runs in this process, with all that was in it where it was before",
    "store not pointed at": "what was found at the endpoint while the store is elsewhere does not lead there",
    "job split": "nodes have gone on at the endpoint while the store was elsewhere; says if its nodes join them",
    "rendezvous endpoint is loopback": "the job may have several nodes, and no other machine can reach the endpoint",
    "rendezvous endpoint is localhost": "other machines can join, but must use this machine's name or address",
    "workers' store lost": "the workers' store could not be started, or its host process ended; the reason is given",
    "file limit raised": "the store's host needs many connections; how many files it may have open now",
    "store served": "the store of elastic serve can be reached at the endpoint given",
    "store served no more": "elastic serve was asked to end, and with it the store and all connections end",
    "etcd server started": "the etcd of this job answers; which binary it is, and of which version",
    "etcd server lost": "the etcd that was started for this job has ended by itself; how, and the end of its log",
    "etcd member waits": "the etcd member of this agent cannot start or leave now, for the reason given",
    "etcd member joined": "the etcd member of this agent has been added in the place of one that was lost, and votes",
    "etcd member left": "the etcd member of this agent was taken out of the cluster, which goes on without it",
    "entry not readable": "the entry of another node cannot be read, so that node cannot take part",
    "rendezvous not signed": "nodes of several machines meet without a secret: whoever reaches the endpoint can join",
    "secret not read": "something is signed with another secret, and the file of the secrets cannot be read again now",
    "not signed": "something in the rendezvous store is not signed with the job's secret, and is passed over",
    "state spoilt": "something else has written in the place of the job's state; the nodes go on with what they know",
    "store spoilt": "something else has written to the keys of the job, which goes on under new ones",
    "store flooded": "the served store has grown too much, or has too many connections; an empty one replaces it",
    "process grown": "this process has grown too much, but not because of the store",
    "record ignored": "what stands under a key of this job cannot be of its nodes, and counts as absent",
    "entry dropped": "the rendezvous store dropped the entry of this node, which lives and announces itself again",
    "lines dropped": "the reader of this log stalled, and this many lines were not written",
}
"""Every event of the core and of our own plugins, and what it means."""

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
Format = Literal["human", "json"]
_COLORS = {"debug": "\x1b[2m", "info": "", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
_PLAIN = "\x1b[0m"
_PATIENCE: Duration = 0.5  # seconds for the reader of the log, see `configure`
_lock = threading.RLock()


def _renew_lock() -> None:
    """A forked child must not inherit a lock that another thread held."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _writer(level: str) -> Callable[Concatenate[Logger, EventName, ...], None]:
    def method(self: Logger, event: EventName, /, **fields: Any) -> None:
        _output.emit(level, event, {**self._bound, **fields})

    return method


class Logger:
    """Writes events with fields, as `configure` said last. `exc_info` adds a traceback; the text format shows the field
    `stack` like a traceback, on lines of its own."""

    __slots__ = ("_bound",)

    def __init__(self, bound: Mapping[str, Any]) -> None:
        self._bound = bound

    def bind(self, **fields: Any) -> Logger:
        """A logger that adds these fields to every line."""
        return Logger({**self._bound, **fields})

    debug, info, warning, error, critical = map(_writer, LEVELS)


def get_logger(**fields: Any) -> Logger:
    """A logger that adds these fields to every line. It costs nothing until it writes."""
    return Logger(fields)


def configure(
    format: Format = "human",  # noqa: A002 - the word that users write
    level: str = "info",
    stream: TextIO | None = None,
    clock: Clock | None = None,
    patience: Duration = _PATIENCE,
) -> None:
    """Set how and where all loggers write from now on. Until the first call the lines go to Python's `logging`, under
    the name `elastic_core`, and nowhere if the program handles none there; a job that it runs shows its warnings.

    Args:
        format: `human` (one line, with a traceback indented below it; on a terminal with the local time of day, else
            with UTC in ISO 8601) or `json` (one object per line).
        level: the lowest level that is written, in upper or lower case; one of `LEVELS`.
        stream: the destination; None is `sys.stderr`, looked up for each line.
        clock: gives the timestamps.
        patience: seconds that a line waits for its reader; a reader that took longer is not waited for again until it
            has caught up.

    Raises:
        ValueError: the format or the level is unknown; the message lists the known ones.
    """
    global _output
    if format not in get_args(Format):
        raise ValueError(f"expected a log format out of {', '.join(get_args(Format))}, found {format!r}")
    if level.lower() not in LEVELS:
        raise ValueError(f"expected a log level out of {', '.join(LEVELS)}, found {level!r}")
    _output = _Output(format, LEVELS[level.lower()], _Sink(stream, patience), clock or SystemClock())


class _Sink:
    """A stream that never blocks its writer for long. A pipe or terminal whose reader has stalled (a pager, Ctrl-S)
    must not hold up the agent, so lines that it does not take in time are dropped."""

    def __init__(self, stream: TextIO | None, patience: Duration) -> None:
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
        except Exception:  # noqa: BLE001 - the error cannot be logged, and the job matters more than its log
            pass

    debug = info = warning = error = critical = write

    def take_dropped(self) -> int:
        """How many lines were dropped, as soon as the stream has room for a line about them. Resets the count."""
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
        """Whether a piece can be written without blocking. Waits for a reader that has not stalled yet."""
        fd = _pollable(stream)
        if fd is None:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        self._stalled = not poll.poll(0 if self._stalled else self._patience * 1000)
        return not self._stalled


def _pollable(stream: TextIO) -> int | None:
    """The descriptor of a pipe, socket or terminal; None for a file and for a stream without one, which never block."""
    try:
        fd = stream.fileno()
        return None if stat.S_ISREG(os.fstat(fd).st_mode) else fd
    except (OSError, ValueError, AttributeError):
        return None


def _pieces(text: str) -> list[str]:
    """Parts that a writable pipe takes at once; a character beyond ASCII may take ten bytes (`\\U0001f525`)."""
    size = select.PIPE_BUF if text.isascii() else select.PIPE_BUF // 10
    return [text[start : start + size] for start in range(0, len(text), size)]


class _Output:
    """One configuration: which lines are written, how, and to which sink."""

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
        except Exception as error:  # noqa: BLE001 - what cannot be shown must not end the job
            self._sink.write(f"{event} (fields not shown: {type(error).__name__})")

    def _made(self) -> Any:
        """structlog's logger. It writes lines of all levels: a count of dropped lines is never left out."""
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
            fields.pop("reason", None)  # people read it in the report, which follows
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
    """Whether a person may be looking at this stream. None, a closed stream, and one without `isatty` are
    no terminals."""
    try:
        return stream is not None and stream.isatty()
    except (ValueError, AttributeError):
        return False


def shows_colors(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal that shows colors, and the user has not turned them off (NO_COLOR)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _pairs(fields: Mapping[str, object]) -> str:
    return "".join(f" {key}={_shown(value)}" for key, value in fields.items())


def _shown(value: object) -> str:
    """A value on one line: bare if that is unambiguous, else quoted, with control characters escaped. Truth values,
    None and numbers look as in JSON, but for `.0`; a list has commas between its items."""
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


class _Handed:
    """Before `configure`: the lines go to Python's logging, under the name `elastic_core`, where a program may want
    them. Otherwise nothing shows them, since a library writes nothing to a console unasked."""

    def emit(self, level: str, event: EventName, fields: dict[str, Any]) -> None:
        import logging

        logger = logging.getLogger("elastic_core")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())  # else logging itself would print what nobody handles
        if logger.isEnabledFor(LEVELS[level]):
            error = fields.pop("exc_info", None)
            pairs = _pairs(fields)
            logger.log(LEVELS[level], "%s", f"{event}{':' if pairs else ''}{pairs}", exc_info=error)


def show_unless_configured() -> None:
    """Show warnings and worse on stderr, if `configure` has not said otherwise: who runs a job wants them."""
    if isinstance(_output, _Handed):
        configure(level="warning")


_output: _Output | _Handed = _Handed()

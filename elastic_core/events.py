"""Records a job's events with a handler that the user selects by name.

`null` drops events, `console` writes JSON to stderr, `file:PATH` appends JSON to a file, and `register_handler` adds
other handlers. `RdzvEvent` and its functions are for programs with their own rendezvous; the agent does not use them.
"""

from __future__ import annotations

import enum
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import Sink, get_logger, tolerating
from elastic_core.support.files import open_to_append

if TYPE_CHECKING:
    from collections.abc import Mapping

EventHandler = Callable[[Any], None]
"""A function that receives an event in the thread that records it."""

EventMetadataValue = str | int | float | bool | None

_RDZV = "dynamic_rendezvous"
T = TypeVar("T", bound="_Serializable")

_clock = SystemClock()


class EventSource(str, enum.Enum):
    """The component that reports an event."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass(frozen=True)
class _Serializable:
    """An event that can be converted to JSON. `enumerated` contains the name and the type of its only enum field."""

    enumerated: ClassVar[tuple[str, type[enum.Enum]]]

    def serialize(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return self.serialize()

    @classmethod
    def deserialize(cls: type[T], data: T | str) -> T:
        """Convert the result of `serialize` back to an event. Raises ValueError or TypeError for anything else."""
        if isinstance(data, cls):
            return data
        name, kind = cls.enumerated
        text = cast("str", data)
        try:
            fields = json.loads(text)
            return cls(**{**fields, name: kind(fields[name])})
        except (LookupError, RecursionError) as error:
            raise ValueError(f"expected an event with a valid {name}, found {text[:60]!r}") from error


@dataclass(frozen=True)
class Event(_Serializable):
    """An event that a component reports. `timestamp` is in milliseconds since the epoch (default: now)."""

    enumerated = "source", EventSource

    name: str
    source: EventSource
    timestamp: int = field(default_factory=lambda: int(_clock.timestamp() * 1000))
    metadata: Mapping[str, EventMetadataValue] = field(default_factory=dict)


class NodeState(str, enum.Enum):
    """A node's state in a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class RdzvEvent(_Serializable):
    """A rendezvous event.

    Args:
        name: the location in the program where the event was recorded.
        master_endpoint: the address of the rendezvous store, if known.
        rank: the node's rank.
        local_id: identifies the node's process on its machine.
        error_trace: the traceback if the state is FAILED.
    """

    enumerated = "node_state", NodeState

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""


class FileHandler:
    """Appends each event to a file as a line of JSON. Each call returns after its line has been written. If a write
    fails, a warning is logged; the next warning follows only after a write has succeeded.

    Raises:
        ConfigurationError: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = open(open_to_append(Path(path).expanduser()), "w", buffering=1)  # noqa: SIM115 - open until `close`
        except (OSError, RuntimeError) as error:  # RuntimeError: the home directory of an unknown user
            problem = f"cannot write to the file {path!r}: {getattr(error, 'strerror', error)}; choose another"
            raise ConfigurationError(Problem("--event-log-handler", problem)) from error
        self._path, self._failed = path, False

    def __call__(self, event: Event) -> None:
        self._attempt(lambda: self._file.write(event.serialize() + "\n"))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._attempt(self._file.close)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
            self._failed = False
        except OSError as error:
            if not self._failed:
                consequence = "until the file can be written to again, events may be missing from it"
                get_logger().warning("event lost", file=self._path, reason=error.strerror, consequence=consequence)
            self._failed = True


_FILE = "file:"
_stderr = Sink()
_handlers: dict[str, EventHandler] = {
    "null": lambda event: None,
    "console": lambda event: _stderr.write(event.serialize()),
}


def handler_names() -> tuple[str, ...]:
    """Return the names of all handlers."""
    return tuple(sorted(_handlers))


def register_handler(name: str, handler: EventHandler) -> None:
    """Add a handler. Raises ConfigurationError if the name is already in use."""
    if _handlers.setdefault(name, handler) is not handler:
        raise ConfigurationError(Problem("event handler", f"the name {name!r} is taken"))


def is_known(name: str) -> bool:
    """Return whether `open_handler` accepts the name."""
    return name in _handlers or name.removeprefix(_FILE) not in (name, "")


def open_handler(name: str) -> EventHandler:
    """Return the handler for a name that `is_known` accepts. `file:PATH` opens the file, and returns a `FileHandler`,
    which the caller must close after the last event.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    return _handlers[name] if name in _handlers else FileHandler(name.removeprefix(_FILE))


def record(event: Event, destination: str = "null") -> None:
    """Pass the event to a handler, in this thread. An exception in the handler is only logged.

    Raises:
        ConfigurationError: there is no such handler.
    """
    if destination not in _handlers:
        message = f"unknown event handler {destination!r}; known handlers: {', '.join(handler_names())}"
        raise ConfigurationError(Problem("event handler", message))
    hand(event, _handlers[destination], destination)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Pass the event to the handler registered as `dynamic_rendezvous`, if there is one. Exceptions in the handler are
    only logged."""
    if _RDZV in _handlers:
        hand(event, _handlers[_RDZV], _RDZV)


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Create an event and pass it to `record_rdzv_event`.

    Args:
        name: the location in the program (default: the caller's file and function).
        hostname: the node's host name (default: this machine's name).
        pid: the process id (default: this process's id).
    """
    if _RDZV not in _handlers:
        return
    caller = sys._getframe(1).f_code
    event = RdzvEvent(
        name=name or f"{Path(caller.co_filename).name}:{caller.co_name}",
        run_id=run_id,
        message=message,
        hostname=hostname or socket.getfqdn(),
        pid=os.getpid() if pid is None else pid,
        node_state=node_state,
        master_endpoint=master_endpoint,
        rank=rank,
        local_id=local_id,
        error_trace=traceback.format_exc() if node_state is NodeState.FAILED else "",
    )
    record_rdzv_event(event)


def hand(event: Event | RdzvEvent, handler: EventHandler, destination: str) -> None:
    """Pass the event to the handler. If the handler raises, the exception is logged and the event is lost."""
    with tolerating("event lost", name=event.name, destination=destination):
        handler(event)

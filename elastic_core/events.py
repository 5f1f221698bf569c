"""Things that happen in a job, recorded by a handler that is chosen by its name.

`null` drops them, `console` writes JSON to stderr, `file:PATH` appends JSON to a file, and `register_handler` adds
others. `RdzvEvent` and its functions are for programs that have a rendezvous of their own; the agent records none.
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
from typing import TYPE_CHECKING, Any

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import get_logger
from elastic_core.support.files import open_to_append

if TYPE_CHECKING:
    from collections.abc import Mapping

EventHandler = Callable[[Any], None]
"""Receives an event, in the thread in which it happens."""

EventMetadataValue = str | int | float | bool | None

_RDZV = "dynamic_rendezvous"

_log = get_logger()
_clock = SystemClock()


class EventSource(str, enum.Enum):
    """Who tells."""

    AGENT = "AGENT"
    WORKER = "WORKER"


def _now_in_ms() -> int:
    return int(_clock.timestamp() * 1000)


@dataclass(frozen=True)
class Event:
    """Something that happened. `timestamp` is in milliseconds since the epoch, by default now."""

    name: str
    source: EventSource
    timestamp: int = field(default_factory=_now_in_ms)
    metadata: Mapping[str, EventMetadataValue] = field(default_factory=dict)

    def serialize(self) -> str:
        """The event as one line of JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return self.serialize()

    @classmethod
    def deserialize(cls, data: Event | str) -> Event:
        """The event that `serialize` wrote. Raises ValueError or TypeError for anything else."""
        if isinstance(data, Event):
            return data
        return cls(**_read(data, "source", EventSource))


class NodeState(str, enum.Enum):
    """What a node does in a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class RdzvEvent:
    """Something that happened in a rendezvous.

    Args:
        name: where in the program it happened.
        master_endpoint: the address of the store of the nodes, if known.
        rank: the node's.
        local_id: the node's process on its machine.
        error_trace: for FAILED, the traceback.
    """

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

    def serialize(self) -> str:
        """The event as one line of JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return self.serialize()

    @classmethod
    def deserialize(cls, data: RdzvEvent | str) -> RdzvEvent:
        """The event that `serialize` wrote. Raises ValueError or TypeError for anything else."""
        if isinstance(data, RdzvEvent):
            return data
        return cls(**_read(data, "node_state", NodeState))


def _read(data: str, name: str, kind: type[enum.Enum]) -> dict[str, Any]:
    """The fields of an event, one of them of this kind."""
    try:
        fields = json.loads(data)
        return {**fields, name: kind(fields[name])}
    except (LookupError, RecursionError) as error:
        raise ValueError(f"expected an event of {name}, found {data[:60]!r}") from error


def _drop(event: object) -> None:
    return


def _print(event: Event) -> None:
    print(event.serialize(), file=sys.stderr, flush=True)


class FileHandler:
    """Appends each event to a file, as a line of JSON, which is on its way to the disk when the call returns.

    Raises:
        ConfigurationError: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = open(open_to_append(Path(path)), "w", buffering=1)  # noqa: SIM115 - open until `close`
        except OSError as error:
            found = f"expected a file that can be written, found that {path!r} cannot: {error.strerror}"
            raise ConfigurationError(Problem("--event-log-handler", f"{found}; choose another")) from error

    def __call__(self, event: Event) -> None:
        self._file.write(event.serialize() + "\n")

    def close(self) -> None:
        """Idempotent."""
        self._file.close()


_FILE = "file:"
_handlers: dict[str, EventHandler] = {"null": _drop, "console": _print}


def handler_names() -> tuple[str, ...]:
    """The destinations there are."""
    return tuple(sorted(_handlers))


def register_handler(name: str, handler: EventHandler) -> None:
    """Add a destination. Raises ConfigurationError when another handler has the name: the last does not win."""
    if _handlers.setdefault(name, handler) is not handler:
        raise ConfigurationError(Problem("event handler", f"the name {name!r} is taken"))


def is_known(name: str) -> bool:
    """Whether `open_handler` knows the name."""
    return name in _handlers or name.removeprefix(_FILE) not in (name, "")


def open_handler(name: str) -> EventHandler:
    """The handler with a name that `is_known`; `file:PATH` opens the file. What has a `close` is the caller's to close.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    return _handlers[name] if name in _handlers else FileHandler(name.removeprefix(_FILE))


def record(event: Event, destination: str = "null") -> None:
    """Hand the event to a handler, in this thread. A handler that raises is logged, never fatal.

    Raises:
        ConfigurationError: there is no such destination.
    """
    if destination not in _handlers:
        message = f"there is no event handler {destination!r}; there are {', '.join(handler_names())}"
        raise ConfigurationError(Problem("event handler", message))
    hand(event, _handlers[destination], destination)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Hand the event to the handler that is registered as `dynamic_rendezvous`, if there is one. One that raises is
    logged."""
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
    """Make an event and hand it on, see `record_rdzv_event`.

    Args:
        name: empty: file and function of the caller.
        hostname: empty: this machine's.
        pid: None: this process.
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
    """Call the handler. If it raises, that is logged, and the event is lost."""
    try:
        handler(event)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - recording must not end what is recorded
        _log.warning("event lost", name=event.name, destination=destination, exc_info=error)

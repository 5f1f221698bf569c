"""Things that happen in a job, recorded by a handler that is chosen by its name.

`null` drops them, `console` writes JSON to stderr, and `register_handler` adds others.
"""

from __future__ import annotations

import enum
import json
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    EventHandler = Callable[["Event"], None]

MetadataValue = str | int | float | bool | None

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
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)

    def serialize(self) -> str:
        """The event as one line of JSON."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        return self.serialize()

    @classmethod
    def deserialize(cls, data: str) -> Event:
        """The event that `serialize` wrote. Raises ValueError or TypeError for anything else."""
        fields = json.loads(data)
        return cls(**{**fields, "source": EventSource(fields["source"])})


def _drop(event: Event) -> None:
    return


def _print(event: Event) -> None:
    print(event.serialize(), file=sys.stderr, flush=True)


_handlers: dict[str, EventHandler] = {"null": _drop, "console": _print}


def handler_names() -> tuple[str, ...]:
    """The destinations there are."""
    return tuple(sorted(_handlers))


def register_handler(name: str, handler: EventHandler) -> None:
    """Add a destination. Raises ConfigurationError when another handler has the name: the last does not win."""
    if _handlers.setdefault(name, handler) is not handler:
        raise ConfigurationError(Problem("event handler", f"the name {name!r} is taken"))


def check_destination(destination: str, origin: str = "--event-log-handler") -> None:
    """Raise ConfigurationError, which names those there are, when nothing is registered under the name."""
    if destination not in _handlers:
        message = f"there is no event handler {destination!r}; there are {', '.join(handler_names())}"
        raise ConfigurationError(Problem(origin, message))


def record(event: Event, destination: str = "null") -> None:
    """Hand the event to a handler, in this thread. A handler that raises is logged, never fatal.

    Raises:
        ConfigurationError: there is no such destination.
    """
    check_destination(destination)
    try:
        _handlers[destination](event)
    except Exception as error:  # noqa: BLE001 - recording must not end what is recorded
        _log.warning("event lost", name=event.name, destination=destination, exc_info=error)

"""The event sinks that come with the core."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks import EventSinkRecord, Option, hookimpl
from elastic_core.support.files import open_to_append

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.events import Event, EventHandler


class FileSink:
    """Appends each event to a file, as a line of JSON, which is on its way to the disk when the call returns.

    Raises:
        ConfigurationError: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = open(open_to_append(Path(path)), "w", buffering=1)  # noqa: SIM115 - open until `close`
        except OSError as error:
            found = f"expected a file that can be written, found that {path!r} cannot: {error.strerror}"
            raise ConfigurationError(Problem("--event-log-conf: path", f"{found}; choose another")) from error

    def __call__(self, event: Event) -> None:
        self._file.write(event.serialize() + "\n")

    def close(self) -> None:
        """Idempotent."""
        self._file.close()


def _named(name: str, options: Mapping[str, Any]) -> EventHandler:
    from elastic_core import events

    return events.HANDLERS[name]


@hookimpl
def elastic_event_sinks() -> list[EventSinkRecord]:
    path = Option("path", str, "events.jsonl", "the file")
    return [
        EventSinkRecord("null", "nowhere", lambda options: _named("null", options)),
        EventSinkRecord("console", "lines of JSON on stderr", lambda options: _named("console", options)),
        EventSinkRecord("file", "lines of JSON in a file", lambda options: FileSink(options["path"]), (path,)),
    ]

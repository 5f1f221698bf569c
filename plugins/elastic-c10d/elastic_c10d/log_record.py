"""What one slot of the log of announcements holds."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from elastic_core.errors import RendezvousStateError

VOID = b"-"
"""Nobody filled the slot in time. It stays so for ever: see `roster_log`."""

SUPERSEDED = b"x"
"""Whoever filled the slot has announced something newer since."""


@dataclass(frozen=True)
class LogRecord:
    """An announcement of `key`, or (`entry` None) its withdrawal. `first` is the slot of the key's first one."""

    key: str
    first: int
    entry: bytes | None

    def encode(self) -> bytes:
        head = f"{self.first} {quote(self.key, safe='')}".encode()
        return head if self.entry is None else head + b" " + self.entry


def decode_record(value: bytes, where: str) -> LogRecord | None:
    """The record, or None for a slot that holds none any more.

    Raises:
        RendezvousStateError: it is nothing that we write.
    """
    if value in (VOID, SUPERSEDED):
        return None
    first, _, rest = value.partition(b" ")
    key, payload, entry = rest.partition(b" ")
    if not first.isdigit() or not key or not key.isascii():
        raise RendezvousStateError(
            f"expected an announcement written by elastic-c10d under the key {where!r}, found {value[:60]!r}; "
            "choose another run id, or a store that nothing else uses"
        )
    return LogRecord(unquote(key.decode()), int(first), entry if payload else None)

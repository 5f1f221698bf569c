"""Requests and answers as plain values, independent of gRPC.

The parts of a write are named tuples, which are created in a third of a frozen dataclass's time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Duration


class KeyValue(NamedTuple):
    """A key as stored in etcd. `version` counts the writes since its creation, from 1; `lease` is 0 if it has none."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@dataclass(frozen=True)
class Range:
    """The keys read, the store's revision at that time, and the number of keys in the range."""

    revision: int
    values: tuple[KeyValue, ...] = ()
    count: int = 0

    @property
    def first(self) -> KeyValue | None:
        """The single key that was read; None if it does not exist."""
        return self.values[0] if self.values else None


class Field(str, enum.Enum):
    """The field of a key that a transaction compares, by its name in etcd's messages."""

    VALUE = "value"
    CREATED = "create_revision"
    MODIFIED = "mod_revision"
    VERSION = "version"
    LEASE = "lease"


class Compare(NamedTuple):
    """A condition: the field equals `expected` (bytes for VALUE, otherwise int). A missing key has no value and 0
    elsewhere."""

    key: bytes
    field: Field
    expected: bytes | int


def absent(key: bytes) -> Compare:
    """The condition that the key does not exist."""
    return Compare(key, Field.CREATED, 0)


class Get(NamedTuple):
    """Read a key, or with `end` all keys before it, oldest first. `count_only`: return only their number. `limit`: the
    maximum number of keys; 0: all."""

    key: bytes
    end: bytes = b""
    keys_only: bool = False
    count_only: bool = False
    limit: int = 0


class Put(NamedTuple):
    """Write a key. With a lease, the key is deleted when the lease ends."""

    key: bytes
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Delete a key, or with `end` all keys before it."""

    key: bytes
    end: bytes = b""


Operation = Get | Put | Delete


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys with this prefix."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\x00"


class Transaction(NamedTuple):
    """If all conditions hold, do `then`, otherwise `otherwise`, atomically. At most 128 operations."""

    conditions: Sequence[Compare]
    then: Sequence[Operation] = ()
    otherwise: Sequence[Operation] = ()


class Committed(NamedTuple):
    """The outcome of a transaction: whether the conditions held, the store's revision afterwards (the mod_revision of
    written keys), and an answer for each operation in order (empty for a write); none if all were writes."""

    succeeded: bool
    revision: int
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Lease:
    """A granted lease; the server chose `ttl`, in seconds."""

    id: int
    ttl: Duration


class Event(NamedTuple):
    """A change of a key. After a deletion, `pair.value` is empty."""

    deleted: bool
    pair: KeyValue

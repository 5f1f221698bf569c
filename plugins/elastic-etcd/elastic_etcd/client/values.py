"""Requests and responses as plain values, independent of gRPC.

The parts of a write are named tuples, because creating a named tuple takes only a third as long as creating a frozen
dataclass.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Duration


class KeyValue(NamedTuple):
    """A key as stored in etcd. `version` counts the writes since its creation, from 1. `lease` is 0 if it has none."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@dataclass(frozen=True)
class Range:
    """The keys that were read, the store's revision at that time, and the number of keys in the range."""

    revision: int
    values: tuple[KeyValue, ...] = ()
    count: int = 0

    @property
    def first(self) -> KeyValue | None:
        """The single key that was read, or None if it does not exist."""
        return self.values[0] if self.values else None


class Field(str, enum.Enum):
    """A field of a key that a transaction can compare. The value is the field's name in etcd's messages."""

    VALUE = "value"
    CREATED = "create_revision"
    MODIFIED = "mod_revision"
    VERSION = "version"
    LEASE = "lease"


class Compare(NamedTuple):
    """A condition that the field equals `expected` (bytes for VALUE, otherwise int). A missing key matches no value,
    and its other fields are 0."""

    key: bytes
    field: Field
    expected: bytes | int


def absent(key: bytes) -> Compare:
    """The condition that the key does not exist."""
    return Compare(key, Field.CREATED, 0)


class Get(NamedTuple):
    """Read a key or, if `end` is given, the range `[key, end)`, oldest first. With `count_only`, only the number of
    keys is returned. `limit` is the maximum number of keys (0: no limit)."""

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
    """Delete a key or, if `end` is given, the range `[key, end)`."""

    key: bytes
    end: bytes = b""


Operation = Get | Put | Delete


def end_of(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with this prefix."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\x00"


class Transaction(NamedTuple):
    """Atomically carry out `then` if all conditions hold, and `otherwise` if not. Each list has at most 128 items."""

    conditions: Sequence[Compare]
    then: Sequence[Operation] = ()
    otherwise: Sequence[Operation] = ()


class Committed(NamedTuple):
    """The outcome of a transaction. `succeeded` is whether the conditions held. `revision` is the store's revision
    afterwards, and the mod_revision of the written keys. `ranges` has a result for each operation, which is empty for a
    write."""

    succeeded: bool
    revision: int
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Lease:
    """A granted lease. `ttl` is the time to live that the server has chosen, in seconds."""

    id: int
    ttl: Duration

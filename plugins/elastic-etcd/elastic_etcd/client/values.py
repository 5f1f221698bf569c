"""What is asked of etcd and what it answers, as plain values: nothing here knows of gRPC.

What every write is made of are named tuples: they are made in a third of the time of a frozen dataclass.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elastic_core.plugin import Duration


class KeyValue(NamedTuple):
    """A key as etcd holds it. `version` counts the writes since it was created, from 1; `lease` is 0 for none."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@dataclass(frozen=True)
class Range:
    """The keys that were asked for, the revision of the whole store at which they were read, and how many keys
    there are in the range."""

    revision: int
    values: tuple[KeyValue, ...] = ()
    count: int = 0

    @property
    def first(self) -> KeyValue | None:
        """The only one of a key that was asked for by itself; None if it does not exist."""
        return self.values[0] if self.values else None


class Field(str, enum.Enum):
    """What of a key a transaction compares. Each is the name that etcd's messages have for it."""

    VALUE = "value"
    CREATED = "create_revision"
    MODIFIED = "mod_revision"
    VERSION = "version"
    LEASE = "lease"


class Compare(NamedTuple):
    """A condition: the field equals `expected` (bytes for VALUE, else int). A key that does not exist has 0 in every
    number and no value."""

    key: bytes
    field: Field
    expected: bytes | int


def absent(key: bytes) -> Compare:
    """The condition that the key does not exist."""
    return Compare(key, Field.CREATED, 0)


class Get(NamedTuple):
    """Read a key, or with `end` all from `key` up to before `end`, in the order of their creation. `count_only`: only
    how many they are. `limit`: no more than the first so many; 0 for all."""

    key: bytes
    end: bytes = b""
    keys_only: bool = False
    count_only: bool = False
    limit: int = 0


class Put(NamedTuple):
    """Write a key; with a lease it goes when that one ends."""

    key: bytes
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Delete a key, or with `end` all from `key` up to before `end`."""

    key: bytes
    end: bytes = b""


Operation = Get | Put | Delete


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with this."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\x00"


class Transaction(NamedTuple):
    """All conditions hold: `then` is done, else `otherwise`; at once, or not at all. At most 128 operations."""

    conditions: Sequence[Compare]
    then: Sequence[Operation] = ()
    otherwise: Sequence[Operation] = ()


class Committed(NamedTuple):
    """What came of a transaction.

    Args:
        succeeded: whether the conditions held.
        revision: of the store afterwards; the mod_revision of what was written.
        ranges: an answer for each operation, in their order, of a write an empty one; none if all were writes.
    """

    succeeded: bool
    revision: int
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Lease:
    """A lease as granted; `ttl` is what the server chose, in seconds."""

    id: int
    ttl: Duration


class Event(NamedTuple):
    """A change of a key. `pair.value` is empty for a deletion."""

    deleted: bool
    pair: KeyValue

"""The seats of a round, stored as a string with one line per seat. The lines are parsed on demand. Every node of a
round receives all seats, but most nodes read only two. With ten thousand nodes, creating an object for each seat would
take longer than everything else in a round."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

from elastic_core.interfaces.node import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_KEYS = re.compile(r"\n([^\t\n]{0,510})(?:\t[^\t\n]{0,255}){4}(?:\t" + _PORT + r"){2}\t[1-9][0-9]{0,8}(?=\n|\Z)")
_MOST = 2**16
_SEPARATORS = dict.fromkeys(map(ord, "\t\n"))


class Seat(NamedTuple):
    """A member's place in a round. `port` is the port of the workers' store if the member has rank 0. `lifeline` is the
    port on which other nodes watch whether the member's agent is alive, or 0 if there is none."""

    key: str
    member: Member
    port: int = 0
    lifeline: int = 0


def _line(seat: Seat) -> str:
    node, host, address, role, size = seat.member
    return f"\n{seat.key}\t{node}\t{host}\t{address}\t{role}\t{seat.port}\t{seat.lifeline}\t{size}"


def _seat(line: str) -> Seat:
    key, node, host, address, role, port, lifeline, size = line.split("\t")
    return Seat(key, Member(node, host, address, role, int(size)), int(port), int(lifeline))


def _member(line: str) -> Member:
    return _seat(line).member


class _Lazy(Sequence[T]):
    def __init__(self, lines: Sequence[str], make: Callable[[str], T]) -> None:
        self._lines = lines
        self._make = make

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._lines)

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[T, ...]: ...

    def __getitem__(self, place: int | slice) -> T | tuple[T, ...]:
        found = self._lines[place]
        return self._make(found) if isinstance(found, str) else tuple(map(self._make, found))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Seats(_Lazy[Seat]):
    """The seats of a round in rank order. No field contains a tab or a newline; `codec` checks announced entries.

    Args:
        text: for each seat, a newline and the tab-separated fields.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        super().__init__(text[1:].split("\n") if text else [], _seat)

    @classmethod
    def of(cls, seats: Iterable[Seat]) -> Seats:
        """Return these seats, in the given order."""
        return cls("".join(map(_line, seats)))

    @classmethod
    def unpacked(cls, data: bytes, longest: int) -> Seats:
        """Return the seats from untrusted packed data. Raises ValueError if the data is invalid, the text is too long
        or malformed, two seats have the same key, or there are too many seats."""
        reader = zlib.decompressobj()
        try:
            unpacked = reader.decompress(data, longest)
        except zlib.error as error:
            raise ValueError(f"expected packed seats, found {data[:30]!r}: {error}") from error
        if not reader.eof or reader.unused_data:
            raise ValueError(f"expected complete packed seats of at most {longest} bytes")
        text = unpacked.decode()
        if text.count("\n") > _MOST:  # a few bytes may decompress to millions of lines
            raise ValueError(f"more than {_MOST} members")
        keys = _KEYS.findall(text)
        if len(keys) != text.count("\n") or text[:1] not in ("", "\n"):
            raise ValueError("a line does not describe a member")
        if not text.translate(_SEPARATORS).isprintable():
            raise ValueError("a line has characters that are not allowed in names")
        ranks = {key: rank for rank, key in enumerate(keys)}
        if len(ranks) != len(keys):
            raise ValueError("a member has two seats")
        seats = cls(text)
        seats._ranks, seats.packed = ranks, data
        return seats

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seats) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def rank(self, key: str) -> int | None:
        """Return the rank of the seat with this key, or None."""
        return self._ranks.get(key)

    @property
    def keys(self) -> Iterable[str]:
        """The keys of all seats, in rank order."""
        return self._ranks.keys()

    @property
    def members(self) -> Sequence[Member]:
        """The members of all seats, in rank order."""
        return _Lazy(self._lines, _member)

    @functools.cached_property
    def _ranks(self) -> dict[str, int]:
        return {line[: line.index("\t")]: rank for rank, line in enumerate(self._lines)}

    @functools.cached_property
    def packed(self) -> bytes:
        """The seats as compressed text with a checksum. The result takes only a few bytes per seat, because most seats
        are similar."""
        return zlib.compress(self.text.encode(), 1)


NOBODY = Seats()

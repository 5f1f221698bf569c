"""The seats of a round as they are written: one text with a line for each, read when somebody asks. Every node of a
round gets all of them and most look at two; as objects, a thousand of them in a thousand nodes would take longer to
make, and to collect, than the round takes to form."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from elastic_core.errors import RendezvousStateError
from elastic_core.interfaces.node import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE = re.compile(r"[^\t]*(?:\t[^\t]*){3}\t[0-9]{1,19}\t[^\t]*\t[1-9][0-9]{0,18}")
# The key of each line that is one of a seat; a line that is not brings none.
_KEYS = re.compile(r"\n([^\t\n]*)(?:\t[^\t\n]*){3}\t[0-9]{1,19}\t[^\t\n]*\t[1-9][0-9]{0,18}(?=\n|\Z)")
_SOUGHT = 8  # keys that are sought in the text before all of them are read
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n"}
_CHARACTERS = {escape: character for character, escape in _ESCAPES.items()}


class Seat(NamedTuple):
    """A member's place in a round; the seats of a round are in rank order. `port`: of the workers' store, if the
    member has rank 0."""

    key: str
    member: Member
    port: int = 0


class Seats(Sequence[Seat]):
    """Seats that were read, in rank order. Equal to a tuple of the same seats.

    Args:
        text: for each seat a line break, and its fields with tabs between them.

    Reading one raises:
        RendezvousStateError: it is not the line of a seat.
    """

    __slots__ = ("_count", "_index", "_read", "_sought", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._count = text.count("\n")
        self._sought: dict[str, tuple[int, int] | None] = {}  # its rank, and where its line begins
        self._read: list[str] | None = None
        self._index: dict[str, int] | None = None

    def rank(self, key: str) -> int | None:
        """The place of the seat with this key; None if there is none."""
        if key in self._sought or len(self._sought) < _SOUGHT:
            found = self._seek(key)
            return None if found is None else found[0]
        if self._index is None:
            self._index = {key: rank for rank, key in enumerate(self.keys())}
        return self._index.get(key)

    def of(self, key: str) -> Seat | None:
        """The seat with this key."""
        found = self._sought.get(key)
        if found is not None:
            return _seat(self._line_at(found[1]))
        rank = self.rank(key)
        return None if rank is None else self[rank]

    def keys(self) -> list[str]:
        """All keys in rank order."""
        return [_unescaped(line.partition("\t")[0]) for line in self._lines()]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Seat: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Seat, ...]: ...

    def __getitem__(self, place: int | slice) -> Seat | tuple[Seat, ...]:
        if place == 0 and self._text:
            return _seat(self._line_at(1))
        lines = self._lines()
        return _seat(lines[place]) if isinstance(place, int) else tuple(map(_seat, lines[place]))

    def __iter__(self) -> Iterator[Seat]:
        return map(_seat, self._lines())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Seats):
            return self._text == other._text
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _seek(self, key: str) -> tuple[int, int] | None:
        if key not in self._sought:
            at = self._text.find(f"\n{_escaped(key)}\t")
            self._sought[key] = None if at < 0 else (self._text.count("\n", 0, at), at + 1)
        return self._sought[key]

    def _line_at(self, begin: int) -> str:
        end = self._text.find("\n", begin)
        return self._text[begin:] if end < 0 else self._text[begin:end]

    def _lines(self) -> list[str]:
        if self._read is None:
            self._read = self._text[1:].split("\n") if self._text else []
        return self._read


class Members(Sequence[Member]):
    """The members of these seats."""

    __slots__ = ("_seats",)

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats

    def __len__(self) -> int:
        return len(self._seats)

    @overload
    def __getitem__(self, place: int) -> Member: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Member, ...]: ...

    def __getitem__(self, place: int | slice) -> Member | tuple[Member, ...]:
        if isinstance(place, int):
            return self._seats[place].member
        return tuple(seat.member for seat in self._seats[place])

    def __iter__(self) -> Iterator[Member]:
        return (seat.member for seat in self._seats)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, Members) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def text_of(seats: Sequence[Seat]) -> str:
    """The text of `Seats`."""
    return seats._text if isinstance(seats, Seats) else "".join(map(_line, seats))


def packed(text: str) -> bytes:
    """The text in a few bytes for each seat: most of them are alike. A checksum is among them."""
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpacked(data: bytes, longest: int) -> str:
    """The text of at most `longest` bytes that was packed.

    Raises:
        ValueError: it is longer, or the bytes are no packed text.
    """
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, longest)
    except zlib.error as error:
        raise ValueError(f"expected packed seats, found {data[:30]!r}: {error}") from error
    if not reader.eof or reader.unused_data:
        raise ValueError(f"expected packed seats of at most {longest} bytes, found more or less than that")
    return text.decode("utf-8", "surrogatepass")


def check(text: str) -> None:
    """Raises ValueError: a line is not one of a seat, or two seats have one key."""
    keys = _KEYS.findall(text)
    if len(keys) != text.count("\n") or text[:1] not in ("", "\n"):
        raise ValueError("a line is not one of a member")
    if len(set(keys)) != len(keys):
        raise ValueError("a member has two seats")


def keys_of(seats: Sequence[Seat]) -> list[str]:
    """The keys in rank order."""
    return seats.keys() if isinstance(seats, Seats) else [seat.key for seat in seats]


def _line(seat: Seat) -> str:
    member = seat.member
    fields = (seat.key, member.node, member.host, member.address, str(seat.port), member.role)
    return "\n" + "\t".join([*map(_escaped, fields), str(member.local_world_size)])


def _seat(line: str) -> Seat:
    if not _LINE.fullmatch(line):
        raise RendezvousStateError(f"expected a line for a member in the rendezvous state, found {line[:60]!r}")
    fields = line.split("\t")
    key, node, host, address, port, role, size = map(_unescaped, fields) if "\\" in line else fields
    return Seat(key, Member(node, host, address, role, int(size)), int(port))


def _escaped(text: str) -> str:
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _unescaped(text: str) -> str:
    return re.sub(r"\\[\\tn]", lambda found: _CHARACTERS[found[0]], text) if "\\" in text else text

"""The seats of a round as they are written: a text for each, read when somebody asks. Every node of a round gets all of
them and most look at two; as objects, a thousand of them in a thousand nodes would keep the garbage collector busy for
longer than the round takes to form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from elastic_core.interfaces.node import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE = re.compile(r"(?:[^\n]*\n){4}[0-9]{1,19}\n[^\n]*\n[1-9][0-9]{0,18}")


class Seat(NamedTuple):
    """A member's place in a round; the seats of a round are in rank order. `port`: of the workers' store, if the
    member has rank 0."""

    key: str
    member: Member
    port: int = 0


class Seats(Sequence[Seat]):
    """Seats that were read, in rank order. Equal to a tuple of the same seats.

    Raises:
        ValueError: a line is not one of a seat, or two seats have one key.
    """

    __slots__ = ("_lines", "keys")

    def __init__(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            if not _LINE.fullmatch(line):
                raise ValueError(f"expected a line for a member, found {line[:60]!r}")
        self._lines = lines
        self.keys: tuple[str, ...] = tuple([_key_of(line) for line in lines])
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("a member has two seats")

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, place: int) -> Seat: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Seat, ...]: ...

    def __getitem__(self, place: int | slice) -> Seat | tuple[Seat, ...]:
        return read_line(self._lines[place]) if isinstance(place, int) else tuple(map(read_line, self._lines[place]))

    def __iter__(self) -> Iterator[Seat]:
        return map(read_line, self._lines)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Seats):
            return self._lines == other._lines
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


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

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, Members) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def keys_of(seats: Sequence[Seat]) -> Sequence[str]:
    """The keys in rank order."""
    return seats.keys if isinstance(seats, Seats) else [seat.key for seat in seats]


def line_of(seat: Seat) -> str:
    """The seat as text, a line for each field."""
    member = seat.member
    fields = (seat.key, member.node, member.host, member.address, str(seat.port), member.role)
    return "\n".join([*map(_escaped, fields), str(member.local_world_size)])


def read_line(line: str) -> Seat:
    """The seat that a line, known to be one, tells of."""
    fields = line.split("\n")
    key, node, host, address, port, role, size = map(_unescaped, fields) if "\\" in line else fields
    return Seat(key, Member(node, host, address, role, int(size)), int(port))


def _key_of(line: str) -> str:
    key = line[: line.index("\n")]
    return _unescaped(key) if "\\" in key else key


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)

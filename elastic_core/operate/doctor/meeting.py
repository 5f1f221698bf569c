"""Doctors that run at the same time against the same store meet there. Pure: what each writes, and what one has seen.

Every doctor announces a card under a key of its own, and beats. Who is there is known by cards that change while one
looks, or whose beats do: what a doctor that died has left behind does not count. When enough are there, each writes its
wall clock into its card again and again. A difference of clocks is estimated from both sides, as NTP does: what A reads
of B is late by the way from B to A, what B reads of A by the way back, and half of the difference of the two is free of
both if they are alike. No decision depends on it.

Stages: MEETING until enough are there, TIMING while clocks are compared, TOLD when done, LEAVING when all others have
told, too.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.backend import Announced

_VERSION = 1
_LONGEST = 1 << 20  # characters of a card; those of thousands of peers fit


class Stage(enum.IntEnum):
    """See above."""

    MEETING = 0
    TIMING = 1
    TOLD = 2
    LEAVING = 3


@dataclass(frozen=True)
class Card:
    """What a doctor announces.

    Args:
        name: of its machine, for people.
        address, port: where it can be connected to for a test.
        versions: of elastic-core, Python and torch.
        wall: its clock when it wrote this, seconds since the epoch.
        behind: by key, the largest difference of another's clock to its own that it has seen: that clock, less the way.
        unreachable: by key, why it cannot connect there.
    """

    name: str
    address: str = ""
    port: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    stage: Stage = Stage.MEETING
    wall: float = 0.0
    behind: Mapping[str, float] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)


def encoded(card: Card) -> bytes:
    """For the store."""
    return json.dumps({"version": _VERSION, **asdict(card)}).encode()


def decoded(data: bytes) -> Card | None:
    """None if it is no card that this version can read."""
    try:
        found: dict[str, Any] = json.loads(data) if len(data) <= _LONGEST else {}
        if found.pop("version", None) != _VERSION:
            return None
        return Card(
            _text(found["name"]),
            _text(found["address"]),
            int(found["port"]),
            {_text(key): _text(value) for key, value in found["versions"].items()},
            Stage(found["stage"]),
            float(found["wall"]),
            {_text(key): float(value) for key, value in found["behind"].items()},
            {_text(key): _text(value) for key, value in found["unreachable"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _text(value: object) -> str:
    text = str(value)[:256]
    return text if text.isprintable() else ascii(text)


@dataclass(frozen=True)
class Meeting:
    """What one doctor has seen.

    Args:
        key: its own.
        size: how many are to meet.
        first: each as it was first seen: beats and card.
        cards: the last card of each that lives or has lived, by key; its own is not among them.
        here: those that were there at the last look, or had gone on their way before.
        behind: see `Card`.
    """

    key: str
    size: int
    first: Mapping[str, tuple[int | None, bytes]] = field(default_factory=dict)
    cards: Mapping[str, Card] = field(default_factory=dict)
    here: frozenset[str] = frozenset()
    behind: Mapping[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether enough are there, this one included."""
        return len(self.cards) + 1 >= self.size

    def reached(self, stage: Stage) -> bool:
        """Whether all others have come that far. Who has left after it began to time is done."""
        return all(card.stage >= stage or key not in self.here for key, card in self.cards.items())


def looked(meeting: Meeting, announced: Sequence[Announced], wall: float) -> Meeting:
    """After another look, at the own clock's `wall`."""
    others = [item for item in announced if item.key != meeting.key]
    first = {**{item.key: (item.beats, item.entry) for item in others}, **meeting.first}
    cards, behind = dict(meeting.cards), dict(meeting.behind)
    for item in others:
        lives = item.key in cards or item.beats is None or (item.beats, item.entry) != first[item.key]
        card = decoded(item.entry)
        if card is None or not lives:
            continue
        cards[item.key] = card
        behind[item.key] = max(card.wall - wall, behind.get(item.key, card.wall - wall))  # old cards only seem late
    here = frozenset(item.key for item in others)
    gone = [key for key, card in cards.items() if key not in here and card.stage is Stage.MEETING]
    kept = {key: card for key, card in cards.items() if key not in gone}
    return replace(meeting, first=first, cards=kept, here=here, behind=behind)


@dataclass(frozen=True)
class Offset:
    """How far another's clock is ahead, in seconds, and how sure that is."""

    ahead: Duration
    margin: Duration


def offset_of(meeting: Meeting, key: str) -> Offset | None:
    """Of the clock of `key`; None if it never was read. Where it is known from one side only, the way is unknown."""
    forth, back = meeting.behind.get(key), meeting.cards[key].behind.get(meeting.key)
    if forth is None or back is None:
        return None
    return Offset((forth - back) / 2, max(-(forth + back) / 2, 0.0))

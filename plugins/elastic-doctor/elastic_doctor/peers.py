"""Implements `--peers`: doctors on several machines find each other through the store, connect, and compare versions.

Each doctor announces a card under its own key and sends heartbeats. The other doctors consider it present only if its
card or its heartbeat counter changes while they watch. They therefore ignore the card of a doctor that has died.
"""

from __future__ import annotations

import contextlib
import enum
import json
import socket
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_core.plugin import (
    BackgroundCall,
    CallTimeout,
    RendezvousConnectionError,
    counted,
    error_text,
    in_one_line,
    later,
)
from elastic_doctor.finding import Check, fault, ok, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_core.plugin import Announced, CheckResult, Clock, Duration, Instant, RosterBackend

_VERSION = 1
_LONGEST = 1 << 20  # bytes of a card; enough for thousands of peers
_TICK: Duration = 0.05  # seconds between two reads
_TICK_PER_PEER: Duration = 0.002
_TO_CONNECT: Duration = 3.0
_FOR_FAREWELL: Duration = 2.0


class Stage(enum.IntEnum):
    """A doctor's progress. A doctor is in the stage MEETING until enough doctors are present. It is TOLD once its card
    lists the doctors that it cannot reach, and LEAVING once all other doctors' cards contain such a list."""

    MEETING = 0
    TOLD = 1
    LEAVING = 2


@dataclass(frozen=True)
class Announcement:
    """A doctor's announcement to the other doctors.

    Args:
        name: display name of the doctor's machine.
        address, port: the address that other doctors try to connect to.
        versions: versions of elastic-core, Python and torch.
        unreachable: the other doctors to which this doctor cannot connect: their keys, mapped to the reasons.
    """

    name: str
    address: str = ""
    port: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    stage: Stage = Stage.MEETING
    unreachable: Mapping[str, str] = field(default_factory=dict)


def encoded(card: Announcement) -> bytes:
    return json.dumps({"version": _VERSION, **asdict(card)}).encode()


def decoded(data: bytes) -> Announcement | None:
    """Decode a card. Returns None if this version cannot read it."""
    try:
        found: dict[str, Any] = json.loads(data) if len(data) <= _LONGEST else {}
        if found.pop("version", None) != _VERSION:
            return None
        return Announcement(
            _text(found["name"]),
            _text(found["address"]),
            int(found["port"]),
            {_text(key): _text(value) for key, value in found["versions"].items()},
            Stage(found["stage"]),
            {_text(key): _text(value) for key, value in found["unreachable"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def _text(value: object) -> str:
    return in_one_line(str(value)[:256])


@dataclass(frozen=True)
class PeerMeeting:
    """One doctor's view of the other doctors.

    Args:
        key: this doctor's key.
        size: the number of expected doctors.
        first: each doctor's heartbeat counter and card when first seen.
        cards: the latest card of each other doctor that is or was present, by key.
        here: keys of all cards in the store at the last read.
    """

    key: str
    size: int
    first: Mapping[str, tuple[int | None, bytes]] = field(default_factory=dict)
    cards: Mapping[str, Announcement] = field(default_factory=dict)
    here: frozenset[str] = frozenset()

    @property
    def met(self) -> bool:
        """Whether enough doctors are present, including this one."""
        return len(self.cards) + 1 >= self.size

    def reached(self, stage: Stage) -> bool:
        """Return whether all other doctors that are present have reached this stage."""
        return all(card.stage >= stage or key not in self.here for key, card in self.cards.items())

    def after_look(self, announced: Sequence[Announced]) -> PeerMeeting:
        """Return a new view, updated with the announcements from another read of the store."""
        others = [item for item in announced if item.key != self.key]
        first = {**{item.key: (item.beats, item.entry) for item in others}, **self.first}
        here = frozenset(item.key for item in others)
        cards = {key: card for key, card in self.cards.items() if key in here or card.stage is not Stage.MEETING}
        for item in others:
            lives = item.key in cards or item.beats is None or (item.beats, item.entry) != first[item.key]
            card = decoded(item.entry) if lives else None
            if card is not None:
                cards[item.key] = card
        return replace(self, first=first, cards=cards, here=here)


@dataclass
class Doctor:
    """A doctor that meets other doctors through the store. Not thread-safe.

    Args:
        key: the doctor's unique key.
        card: the doctor's announcement.
        pause: waits for the given number of seconds.
        reach: connects to an address and port. Returns the reason for a failure, or an empty string on success.
    """

    backend: RosterBackend
    key: str
    card: Announcement
    clock: Clock
    pause: Callable[[Duration], object]
    reach: Callable[[str, int], str]

    def meet(self, size: int, patience: Duration) -> PeerMeeting:
        """Wait up to `patience` seconds until `size` doctors are present, including this one. Then connect to all
        others, announce the results, and leave. If too few doctors are present in time, the returned meeting's `met` is
        False. Raises RendezvousConnectionError if the store fails."""
        until = later(self.clock.now(), patience)
        self._announce()
        try:
            meeting = self._looks(PeerMeeting(self.key, size), until, lambda seen: seen.met)
            return self._together(meeting) if meeting.met else meeting
        finally:
            with contextlib.suppress(RendezvousConnectionError):
                self.backend.withdraw(self.key)

    def _together(self, meeting: PeerMeeting) -> PeerMeeting:
        calls = {
            key: BackgroundCall(partial(self.reach, card.address, card.port)) for key, card in meeting.cards.items()
        }
        unreachable = {key: why for key, call in calls.items() if (why := call.result(2 * _TO_CONNECT))}
        self.card = replace(self.card, unreachable=unreachable)
        meeting = self._reach(Stage.TOLD, meeting, 2 * _TO_CONNECT + _FOR_FAREWELL)
        with contextlib.suppress(RendezvousConnectionError):  # the doctor that hosted the store has left
            meeting = self._reach(Stage.LEAVING, meeting, _FOR_FAREWELL)
        return meeting

    def _reach(self, stage: Stage, meeting: PeerMeeting, patience: Duration) -> PeerMeeting:
        self.card = replace(self.card, stage=stage)
        self._announce()
        until = later(self.clock.now(), patience)
        return self._looks(meeting, until, partial(PeerMeeting.reached, stage=stage))

    def _looks(self, meeting: PeerMeeting, until: Instant, enough: Callable[[PeerMeeting], bool]) -> PeerMeeting:
        meeting = self._look(meeting)
        while not enough(meeting) and self.clock.now() < until:
            self.backend.beat(self.key, leading=False, look=False)
            meeting = self._look(meeting)
        return meeting

    def _look(self, meeting: PeerMeeting) -> PeerMeeting:
        self.pause(max(_TICK, _TICK_PER_PEER * meeting.size))
        return meeting.after_look(self.backend.roster())

    def _announce(self) -> None:
        self.backend.announce(self.key, encoded(self.card))


def cannot_reach(address: str, port: int, limit: Duration = _TO_CONNECT) -> str:
    """Try to connect within `limit` seconds. Returns the reason for a failure, or an empty string on success."""
    try:
        BackgroundCall(lambda: socket.create_connection((address, port), limit).close()).result(limit)
    except CallTimeout:
        return "timed out"
    except (OSError, UnicodeError) as error:
        return error_text(error) if isinstance(error, OSError) else str(error)
    return ""


def judged_peers(meeting: PeerMeeting, own: Announcement, patience: Duration) -> Iterator[CheckResult]:
    """Yield the findings about the meeting. `own` is this doctor's final card."""
    cards = {meeting.key: own, **meeting.cards}
    names = ", ".join(sorted(card.name for card in cards.values()))
    if not meeting.met:
        text = f"{len(cards)} of {counted(meeting.size, 'doctor')} joined within {patience:g} s: {names}"
        advice = "start a doctor on each node at the same time, with the same endpoint, --rdzv-id and --peers"
        yield fault(Check.PEERS, text, advice)
        return
    broken = [
        (card.name, cards[key], why) for card in cards.values() for key, why in card.unreachable.items() if key in cards
    ]
    if not broken:
        yield ok(Check.PEERS, f"{counted(len(cards), 'doctor')} joined, and all can connect to each other: {names}")
    for name, other, why in broken:
        text = f"{name} cannot connect to {other.name} at {other.address}: {why}"
        advice = f"allow connections between them on all ports, or set another --local-addr on {other.name}"
        yield fault(Check.ADDRESS, text, advice)
    yield _versions(cards)


def _versions(cards: Mapping[str, Announcement]) -> CheckResult:
    differing = []
    for what in sorted({what for card in cards.values() for what in card.versions}):
        by_version: dict[str, list[str]] = {}
        for card in cards.values():
            by_version.setdefault(card.versions.get(what, "none"), []).append(card.name)
        if len(by_version) > 1:
            listed = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(by_version.items()))
            differing.append(f"{what} {listed}")
    if not differing:
        return ok(Check.PEER_VERSIONS, "all have the same versions of elastic-core, Python and torch")
    return warning(Check.PEER_VERSIONS, " | ".join(differing), "install the same versions on every node")

"""`--peers`: meets the other doctors at the store, tries the way to each, compares clocks. `judged_peers` judges."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.operate.doctor.finding import Check, fault, note, ok, warning
from elastic_core.operate.doctor.meeting import Meeting, Stage, encoded, looked, offset_of
from elastic_core.support.bounded import Call, Late
from elastic_core.support.sockets import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.operate.doctor.finding import Finding
    from elastic_core.operate.doctor.meeting import Card

TICK: Duration = 0.05
"""Seconds between two looks."""

_TICK_PER_PEER: Duration = 0.002
_STAMPS = 10
_FOR_FAREWELL: Duration = 2.0
_FOR_A_WAY: Duration = 3.0
_TOLERATED: Duration = 1.0  # seconds between clocks that nobody minds


@dataclass
class Doctor:
    """One doctor among several. Used from one thread.

    Args:
        key: unique for it.
        card: what it tells of itself.
        pause: waits for so many seconds.
        reach: connects to an address and port: why it cannot, or an empty text.
    """

    backend: RosterBackend
    key: str
    card: Card
    clock: Clock
    pause: Callable[[Duration], object]
    reach: Callable[[str, int], str]

    def meet(self, size: int, patience: Duration) -> Meeting:
        """Wait until `size` have met, `patience` seconds at most, then compare clocks and leave. What it returns has
        not `met` if they were too few. Raises RendezvousConnectionError."""
        until = later(self.clock.now(), patience)
        self._announce()
        try:
            meeting = self._looks(Meeting(self.key, size), until, lambda seen: seen.met)
            return self._together(meeting) if meeting.met else meeting
        finally:
            self.backend.withdraw(self.key)

    def _together(self, meeting: Meeting) -> Meeting:
        ways = {key: self._way(card) for key, card in meeting.cards.items()}
        unreachable = {key: why for key, way in ways.items() if (why := way.result(2 * _FOR_A_WAY))}
        self.card = replace(self.card, stage=Stage.TIMING, unreachable=unreachable)
        soon = later(self.clock.now(), _FOR_A_WAY + _FOR_FAREWELL)
        stamps = 0
        while stamps < _STAMPS and self.clock.now() < soon:
            self._announce()
            meeting = self._look(meeting)
            stamps += meeting.reached(Stage.TIMING)
        for stage in (Stage.TOLD, Stage.LEAVING):
            self.card = replace(self.card, stage=stage, behind=meeting.behind)
            self._announce()
            soon = later(self.clock.now(), _FOR_FAREWELL)
            meeting = self._looks(meeting, soon, lambda seen, stage=stage: seen.reached(stage))  # type: ignore[misc]
        return meeting

    def _way(self, card: Card) -> Call[str]:
        return Call(lambda: self.reach(card.address, card.port))

    def _looks(self, meeting: Meeting, until: Instant, enough: Callable[[Meeting], bool]) -> Meeting:
        meeting = self._look(meeting)
        while not enough(meeting) and self.clock.now() < until:
            self.backend.beat(self.key, leading=False, look=False)
            meeting = self._look(meeting)
        return meeting

    def _look(self, meeting: Meeting) -> Meeting:
        self.pause(max(TICK, _TICK_PER_PEER * meeting.size))
        announced = self.backend.roster()
        return looked(meeting, announced, self.clock.timestamp())

    def _announce(self) -> None:
        self.card = replace(self.card, wall=self.clock.timestamp())
        self.backend.announce(self.key, encoded(self.card))


def cannot_reach(address: str, port: int, limit: Duration = _FOR_A_WAY) -> str:
    """Why a connection there cannot be made within `limit` seconds; empty if it can."""
    try:
        Call(lambda: socket.create_connection((address, port), limit).close()).result(limit)
    except Late:
        return "timed out"
    except (OSError, UnicodeError) as error:
        return plain(error) if isinstance(error, OSError) else str(error)
    return ""


def judged_peers(meeting: Meeting, own: Card, patience: Duration) -> Iterator[Finding]:
    """What came of it. `own`: this doctor's card at the end."""
    cards = {meeting.key: own, **meeting.cards}
    names = ", ".join(sorted(card.name for card in cards.values()))
    if not meeting.met:
        yield fault(
            Check.PEERS,
            f"{len(cards)} of {_counted(meeting.size)} met within {patience:g} s: {names}",
            "start one on each node at the same time, with the same endpoint, --rdzv-id and --peers",
        )
        return
    yield from _ways(meeting, own, names, cards)
    yield _versions(cards)
    yield from _clocks(meeting)


def _counted(doctors: int) -> str:
    return f"{doctors} doctor{'' if doctors == 1 else 's'}"


def _ways(meeting: Meeting, own: Card, names: str, cards: Mapping[str, Card]) -> Iterator[Finding]:
    broken = [
        (card.name, cards[key], why) for card in cards.values() for key, why in card.unreachable.items() if key in cards
    ]
    if not broken:
        yield ok(Check.PEERS, f"{_counted(len(cards))} met, and each reaches each: {names}")
    for name, other, why in broken:
        told = f"{name} cannot connect to {other.name} at {other.address}: {why}"
        advice = f"open the network between them for any port, or give {other.name} another --local-addr"
        yield fault(Check.ADDRESS, told, advice)


def _versions(cards: Mapping[str, Card]) -> Finding:
    differing = []
    for what in sorted({what for card in cards.values() for what in card.versions}):
        by_version: dict[str, list[str]] = {}
        for card in cards.values():
            by_version.setdefault(card.versions.get(what, "none"), []).append(card.name)
        if len(by_version) > 1:
            listed = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(by_version.items()))
            differing.append(f"{what} {listed}")
    if not differing:
        return ok(Check.PEER_VERSIONS, "elastic-core, Python and torch are the same everywhere")
    return warning(Check.PEER_VERSIONS, " | ".join(differing), "install the same versions on every node")


def _clocks(meeting: Meeting) -> Iterator[Finding]:
    offsets = {key: offset_of(meeting, key) for key in meeting.cards}
    for key, offset in offsets.items():
        name = meeting.cards[key].name
        if offset is None:
            yield note(Check.CLOCKS, f"the clock of {name} could not be compared")
            continue
        side = "ahead of" if offset.ahead >= 0 else "behind"
        told = f"the clock of {name} is {abs(offset.ahead):.3f} s {side} ours (within {offset.margin:.3f} s)"
        if abs(offset.ahead) - offset.margin <= _TOLERATED:
            yield ok(Check.CLOCKS, told)
        else:
            advice = "harmless for elastic run; run an NTP client, so that logs and the times of files can be compared"
            yield note(Check.CLOCKS, told, advice)

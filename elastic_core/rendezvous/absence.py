"""Members without an entry, and how long they may take to announce themselves again. Pure.

A store with leases drops the entries of nodes that are gone, so that who has none is lost. But it can be wrong about
all of them at once: one that was away or has lost its memory, and an etcd cluster (before 3.5.11) whose leader was
suspended, wakes, and ends every lease that was not renewed with *it*. Who decides about others must not be faster than
the news that its own entry went too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_core.clock import Instant, later

if TYPE_CHECKING:
    from collections.abc import Collection

    from elastic_core.clock import Duration
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.state import State

CONFIRM: Duration = 0.75
"""Seconds between the end of one lease and that of the next, when a store ends them all: etcd looks twice a second for
those that are over, and ends so many of them at a time."""

_LONG_AGO = Instant(float("-inf"))


@dataclass(frozen=True)
class Absence:
    """What one observer knows of it.

    Args:
        until: until then nobody is lost for having no entry, on the observer's clock.
        present: the keys that it saw when it looked last; None before the first look.
        absent: members that had no entry then.
    """

    until: Instant = _LONG_AGO
    present: frozenset[str] | None = None
    absent: frozenset[str] = frozenset()

    def all_back_by(self, until: Instant) -> Absence:
        """Everybody gets the time to come back."""
        return replace(self, until=max(until, self.until))

    def dropped(self, own: str, present: Collection[str]) -> bool:
        """Whether the store has dropped the observer's own entry, which stood there: it has seen it before, or has
        not looked yet."""
        return own not in present and (self.present is None or own in self.present)

    def looked(self, present: Collection[str], members: Collection[str], now: Instant) -> Absence:
        """After a look; `members` are those that should have an entry. Who is absent for the first time may not be the
        last."""
        seen = frozenset(present)
        absent = frozenset(members) - seen
        until = max(self.until, later(now, CONFIRM)) if absent - self.absent else self.until
        return Absence(until, seen, absent)


def goes_without(before: State, after: State, roster: Roster) -> bool:
    """Whether a round forms without a member of the last one that has no entry."""
    if before.open or not after.open:
        return False
    known = {seat.key for seat in after.seats} | {seen.entry.key for seen in roster}
    return any(seat.key not in known for seat in before.surviving)

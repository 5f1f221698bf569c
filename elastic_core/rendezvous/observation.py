"""What one node sees of the others, from one look at the store to the next. Pure: what stands in the store comes in,
and times are the observer's own.

Where the store shows beats, a node is late when its counter stands still and the observer has looked often enough: an
observer that could not look has seen nothing. Clocks of two machines are never compared.

A store with leases shows no beats and drops the entries of nodes that are gone. But it can be wrong about all of them
at once: if it was away, if it has lost its memory, or if it is an etcd cluster (before 3.5.11) whose leader was
suspended, wakes, and ends every lease that was not renewed with *it*. So an observer must not call others lost before
it could learn that its own entry went too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.clock import LONG_AGO, Instant, later
from elastic_core.rendezvous.roster import Seen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from elastic_core.clock import Duration
    from elastic_core.rendezvous.effects import Registration
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings

CONFIRM: Duration = 0.75
"""Seconds between the end of one lease and that of the next, when a store ends them all: etcd looks twice a second for
those that are over, and ends so many of them at a time."""
SURELY = 1.5  # intervals within which a live node is seen to beat
DOUBTS = 2  # looks at nodes that may be late, by an observer that has only just begun to look


@dataclass(frozen=True)
class Counter:
    """A counter as last seen: its value, when it was first seen with that value, how many looks found it still the
    same, and when the last of these was; None before the first."""

    value: int
    since: Instant
    unchanged: int = 0
    looked: Instant | None = None

    def seen(self, value: int, now: Instant, interval: Duration) -> Counter:
        """After another look. Looks closer together than half an interval are one: after an outage, in which nobody
        could beat, many looks in a row have still seen only one moment."""
        if value != self.value:
            return Counter(value, now)
        if now - (self.since if self.looked is None else self.looked) < 0.5 * interval:
            return self
        return Counter(value, self.since, self.unchanged + 1, now)

    def after_outage(self, most: int, now: Instant) -> Counter:
        """No node could count during the outage: of the looks before it, at most `most` are kept."""
        return replace(self, unchanged=min(self.unchanged, most), looked=now)


@dataclass(frozen=True)
class Observation:
    """What is known of the others after the last look.

    Args:
        interval: seconds between two beats of a live node.
        attempts: beats that may fail to appear.
        counters: of the beats, by key.
        registrations: what stood in the store.
        roster: the entries among them that can be read.
        leased: whether the store drops the entries of nodes that are gone.
        settled: until then no node is lost for having no entry.
        absent: members that had no entry.
        looked: whether there was a look.
        ended: keys whose agents are known to have ended in this round.
        heard: the keys in `ended` that another node reported. If such an agent returns, the report is ignored.
    """

    interval: Duration
    attempts: int
    counters: Mapping[str, Counter] = field(default_factory=dict)
    registrations: tuple[Registration, ...] = ()
    roster: Roster = ()
    leased: bool = False
    settled: Instant = LONG_AGO
    absent: frozenset[str] = frozenset()
    looked: bool = False
    ended: frozenset[str] = frozenset()
    heard: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: RendezvousSettings) -> Observation:
        """Before the first look."""
        return cls(settings.keep_alive_interval, settings.keep_alive_max_attempt)

    def after_look(self, found: tuple[Registration, ...], state: State, now: Instant) -> Observation:
        """After another look; counters and entries that have gone are forgotten. Who has written its entry anew lives,
        though it has not beaten yet: else a node that is back from an outage is seated by one that has seen the entry,
        and called lost by one that waits for the beat, in turn."""
        leased = self.leased or any(item.beats is None for item in found)
        before = {item.key: item.entry for item in self.registrations}
        counters = {
            i.key: Counter(i.beats, now) if i.entry != before.get(i.key) else self._counter(i.key, i.beats, now)
            for i in found
            if i.beats is not None
        }
        since = {seen.entry.key: seen.since for seen in self.roster}
        reports = (item.entry.reported for item in found if item.entry is not None)
        heard = self.heard.union(*(said.ended for said in reports if said is not None and said.round == state.round))
        ended = self.ended | (heard - self.heard)
        seen = replace(self, registrations=found, counters=counters, leased=leased, looked=True)
        seen = replace(seen, ended=ended, heard=heard)
        roster = tuple(
            Seen(item.entry, seen.late(item.key, now), since.get(item.key, now), item.key in ended)
            for item in found
            if item.entry is not None
        )
        return replace(seen, roster=(*self._gone_done(found, state), *roster))._with_absent(state, now)

    def _gone_done(self, found: tuple[Registration, ...], state: State) -> tuple[Seen, ...]:
        """Members that were seen to be done, and whose entries have gone before any node noted that: they had
        succeeded, and are not lost."""
        here = {item.key for item in found}
        busy = set(state.busy) if state.open else set()
        return tuple(
            replace(seen, late=True)
            for seen in self.roster
            if seen.entry.done == state.round and seen.entry.key in busy and seen.entry.key not in here
        )

    def _counter(self, key: str, value: int, now: Instant) -> Counter:
        before = self.counters.get(key)
        return Counter(value, now) if before is None else before.seen(value, now, self.interval)

    def _with_absent(self, state: State, now: Instant) -> Observation:
        """A node that is newly absent may not be the last one."""
        if not self.leased and self.registrations:
            return self
        absent = frozenset(state.busy) - {item.key for item in self.registrations}
        settled = max(self.settled, later(now, CONFIRM)) if absent - self.absent else self.settled
        return replace(self, absent=absent, settled=settled)

    def drops(self, own: str, found: tuple[Registration, ...]) -> bool:
        """Whether a look that found this shows that the store has dropped the observer's `own` entry, which stood
        there. Only a store with leases does; one that shows no entry at all may be one."""
        leased = self.leased or not found or any(item.beats is None for item in found)
        stood = not self.looked or any(item.key == own for item in self.registrations)
        return leased and stood and all(item.key != own for item in found)

    def after_outage(self, now: Instant) -> Observation:
        """No node could be heard, and some need a moment to come back: they are late only after some more looks. Nodes
        that were seen before are seen anew, because of two agents with one name it is not known yet which is gone."""
        most = max(self.attempts - 1 - DOUBTS, 0)
        counters = {key: counter.after_outage(most, now) for key, counter in self.counters.items()}
        return replace(self, counters=counters, roster=tuple(replace(seen, since=now) for seen in self.roster))

    def all_back_by(self, until: Instant) -> Observation:
        """Until then the nodes have time to announce themselves again: a node without an entry is not lost."""
        return replace(self, settled=max(until, self.settled))

    def presumed_late(self, first: Collection[str], between: Collection[str], now: Instant) -> Observation:
        """The first nodes in succession order would lead if they lived: they are late, as if they had been watched for
        long, until they beat again. Those between them and this node may be about to lead themselves, so some doubt
        remains. A node whose counter was not seen to stand still may be alive, though it does not lead: it may have
        been cut off."""
        since = Instant(now - self.interval * self.attempts)
        looks = {**dict.fromkeys(between, self.attempts - 1 - DOUBTS), **dict.fromkeys(first, self.attempts - 1)}
        late = {
            key: Counter(self.counters[key].value, since, max(unchanged, 0), now)
            for key, unchanged in looks.items()
            if key in self.counters and now - self.counters[key].since >= SURELY * self.interval
        }
        return replace(self, counters={**self.counters, **late})

    def late(self, key: str, now: Instant) -> bool:
        """Whether the counter has stood still for too long, by the clock and by the number of looks; or it is known
        that nobody counts."""
        if key in self.ended:
            return True
        counter = self.counters.get(key)
        if counter is None:
            return False
        return counter.unchanged >= self.attempts - 1 and now - counter.since >= self.interval * self.attempts

    def age(self, key: str, now: Instant) -> Duration | None:
        """Seconds since the counter was first seen as it is."""
        counter = self.counters.get(key)
        return None if counter is None else now - counter.since

    def knows_ended(self, key: str) -> Observation:
        """The agent with this key has ended, however lately it has beaten."""
        return replace(self, ended=self.ended | {key})

    def forgets(self, key: str) -> Observation:
        """Its entry was withdrawn: if another one comes with that key, the agent lives."""
        return replace(self, ended=self.ended - {key}) if key in self.ended else self

    def to_tell(self, state: State) -> bool:
        """Whether the state or an entry still speaks of an agent that has ended as of one that lives."""
        return any(key in state.busy or any(item.key == key for item in self.registrations) for key in self.ended)

    def dead(self, state: State, now: Instant) -> str | None:
        """A key whose entry is useless: it has been late for another failure timeout, or its agent has ended, and no
        running round has it."""
        patience = 2 * self.interval * self.attempts
        idle = [item.key for item in self.registrations if not (state.open and state.seated(item.key))]
        for key in idle:  # also one whose entry cannot be read
            age = self.age(key, now) if self.late(key, now) else None
            if age is not None and age >= patience:
                return key
        return next((key for key in idle if key in self.ended and key not in state.busy), None)

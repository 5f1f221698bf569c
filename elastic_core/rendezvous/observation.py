"""What one node (the observer) sees of other nodes, from one read of the roster to the next. Pure. All times are on the
observer's own clock.

If the store shows heartbeats, a node is late when its counter has not changed for long, in enough looks: an observer
that could not look has seen nothing.

A store with leases shows no heartbeats, and drops the entries of nodes that are gone. But it may drop all entries by
mistake: after an outage, after a loss of data, or if it is an etcd cluster (before 3.5.11) whose leader was suspended
and then ends every lease that was not renewed with *it*. So an observer must not consider other nodes lost before it
could learn that its own entry has gone too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.clock import LONG_AGO, Instant, later
from elastic_core.rendezvous.roster import ObservedEntry

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from elastic_core.clock import Duration
    from elastic_core.rendezvous.effects import Registration
    from elastic_core.rendezvous.model import State
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings

CONFIRM: Duration = 0.75
"""Seconds between the end of one lease and that of the next, if a store ends all of them: etcd ends a limited number of
leases twice a second."""
SURELY = 1.5  # intervals within which an observer sees a heartbeat of a live node
DOUBTS = 2  # more looks at nodes that may be late, by an observer that has only just begun to look


@dataclass(frozen=True)
class Counter:
    """A counter as last seen: its value, when the observer first saw that value, how many later looks found it
    unchanged, and when the last of these was."""

    value: int
    since: Instant
    unchanged: int = 0
    looked: Instant | None = None

    def seen(self, value: int, now: Instant, interval: Duration) -> Counter:
        """After another look. Looks less than half an interval apart count once, because many looks right after an
        outage see only one moment."""
        if value != self.value:
            return Counter(value, now)
        if now - (self.since if self.looked is None else self.looked) < 0.5 * interval:
            return self
        return Counter(value, self.since, self.unchanged + 1, now)

    def after_outage(self, most: int, now: Instant) -> Counter:
        """No node could send heartbeats during the outage: keep at most `most` of the looks before it."""
        return replace(self, unchanged=min(self.unchanged, most), looked=now)


@dataclass(frozen=True)
class Observation:
    """What the observer knows of other nodes after its last look.

    Args:
        interval: seconds between two heartbeats.
        attempts: how many heartbeats may be missing.
        counters: the heartbeat counters by key.
        registrations: what the store contained.
        roster: the readable entries among these.
        leased: whether the store drops the entries of nodes that are gone.
        settled: until then no node is considered lost because it has no entry.
        absent: members without an entry.
        looked: whether the observer has looked at all.
        ended: keys of agents that are known to have ended in this round.
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
        """After another look. A node that has written its entry again is alive, though it has sent no heartbeat since:
        otherwise one observer would give a seat to a node that returns from an outage, and the next would end that
        round because it still waits for the heartbeat."""
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
            ObservedEntry(item.entry, seen.late(item.key, now), since.get(item.key, now), item.key in ended)
            for item in found
            if item.entry is not None
        )
        return replace(seen, roster=(*self._gone_done(found, state), *roster))._with_absent(state, now)

    def _gone_done(self, found: tuple[Registration, ...], state: State) -> tuple[ObservedEntry, ...]:
        """Members that the observer saw done, and whose entries have gone before a node recorded that: they succeeded,
        and are not lost."""
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
        """If a member is newly absent, wait: other entries may disappear too."""
        if not self.leased and self.registrations:
            return self
        absent = frozenset(state.busy) - {item.key for item in self.registrations}
        settled = max(self.settled, later(now, CONFIRM)) if absent - self.absent else self.settled
        return replace(self, absent=absent, settled=settled)

    def drops(self, own: str, found: tuple[Registration, ...]) -> bool:
        """Whether a look that found these entries shows that the store has dropped the observer's `own` entry. Only a
        store with leases does that; a store without any entry may be one."""
        leased = self.leased or not found or any(item.beats is None for item in found)
        stood = not self.looked or any(item.key == own for item in self.registrations)
        return leased and stood and all(item.key != own for item in found)

    def after_outage(self, now: Instant) -> Observation:
        """Nodes need a moment to return after an outage: they are late only after some more looks. Reset when the
        observer first saw each node: of two agents with one name, either may have ended in the meantime."""
        most = max(self.attempts - 1 - DOUBTS, 0)
        counters = {key: counter.after_outage(most, now) for key, counter in self.counters.items()}
        return replace(self, counters=counters, roster=tuple(replace(seen, since=now) for seen in self.roster))

    def all_back_by(self, until: Instant) -> Observation:
        """Until then, a node without an entry is not considered lost, so that nodes have time to announce themselves
        again."""
        return replace(self, settled=max(until, self.settled))

    def overdue_by_log(self, first: Collection[str], between: Collection[str], now: Instant) -> Observation:
        """The first nodes in succession order would lead if they were alive: they are late until they send a heartbeat
        again. The nodes between them and the observer may be about to lead, so these get some more looks. A node whose
        counter has changed recently may be alive though it does not lead: it may have been cut off."""
        since = Instant(now - self.interval * self.attempts)
        looks = {**dict.fromkeys(between, self.attempts - 1 - DOUBTS), **dict.fromkeys(first, self.attempts - 1)}
        late = {
            key: Counter(self.counters[key].value, since, max(unchanged, 0), now)
            for key, unchanged in looks.items()
            if key in self.counters and now - self.counters[key].since >= SURELY * self.interval
        }
        return replace(self, counters={**self.counters, **late})

    def late(self, key: str, now: Instant) -> bool:
        """Whether the agent is known to have ended, or its counter has not changed for too long, by the clock and by
        the number of looks."""
        if key in self.ended:
            return True
        counter = self.counters.get(key)
        if counter is None:
            return False
        return counter.unchanged >= self.attempts - 1 and now - counter.since >= self.interval * self.attempts

    def age(self, key: str, now: Instant) -> Duration | None:
        """Seconds since the observer first saw the counter's current value."""
        counter = self.counters.get(key)
        return None if counter is None else now - counter.since

    def knows_ended(self, key: str) -> Observation:
        """The agent with this key has ended, even if it has just sent a heartbeat."""
        return replace(self, ended=self.ended | {key})

    def forgets(self, key: str) -> Observation:
        """The entry with this key was withdrawn. If the key returns, its agent is alive."""
        return replace(self, ended=self.ended - {key}) if key in self.ended else self

    def has_unreported(self, state: State) -> bool:
        """Whether the state or an entry still treats an agent that has ended as alive."""
        return any(key in state.busy or any(item.key == key for item in self.registrations) for key in self.ended)

    def dead(self, state: State, now: Instant) -> str | None:
        """A key whose entry is useless: it has been late for two failure timeouts, or its agent has ended; and it is
        not in a running round."""
        patience = 2 * self.interval * self.attempts
        idle = [item.key for item in self.registrations if not (state.open and state.seated(item.key))]
        for key in idle:  # also one whose entry cannot be read
            age = self.age(key, now) if self.late(key, now) else None
            if age is not None and age >= patience:
                return key
        return next((key for key in idle if key in self.ended and key not in state.busy), None)

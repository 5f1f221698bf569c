"""What one node (the observer) sees of other nodes at each read of the roster, which nodes may take part, and in which
rank order. All functions are pure. All times are on the observer's own clock.

If the store shows heartbeats, a node is late when its heartbeat counter has not changed for long enough and in enough
reads. The number of reads matters, because an observer that could not read may have missed changes.

A store with leases shows no heartbeats, and drops the entries of failed nodes. Such a store may also drop all entries
by mistake, for example after an outage or a loss of data. An etcd cluster (before 3.5.11) does so after its leader was
suspended: when the leader resumes, it revokes every lease that it did not itself renew. An observer must therefore not
consider other nodes lost until it has had time to learn whether its own entry was also dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.clock import LONG_AGO, Instant, later
from elastic_core.interfaces.node import Candidate
from elastic_core.text import natural_order

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from elastic_core.clock import Duration
    from elastic_core.interfaces.node import RankPolicy
    from elastic_core.rendezvous.model import Entry, State
    from elastic_core.rendezvous.settings import RendezvousSettings

CONFIRM: Duration = 0.75
"""The maximum number of seconds between the ends of two successive leases when a store ends all leases. etcd revokes
leases in limited batches, twice a second."""
SURELY = 1.5  # intervals within which an observer sees a live node's heartbeat
DOUBTS = 2  # extra reads before an observer that has only just begun to read considers a node late


class Registration(NamedTuple):
    """One node's entry as it is stored. `entry` is None if the stored entry is unreadable. For `beats`, see
    `Announced`."""

    key: str
    entry: Entry | None
    beats: int | None = None


@dataclass(frozen=True)
class ObservedEntry:
    """An entry as one observer sees it.

    Args:
        late: whether the node's heartbeat is late; a late node is considered lost.
        since: when the observer first saw the entry's key, on the observer's clock.
        ended: whether the node is late because its agent is known to have ended.
    """

    entry: Entry
    late: bool
    since: Instant
    ended: bool = False


Roster = tuple[ObservedEntry, ...]
"""The entries that one observer sees, oldest first."""


@dataclass(frozen=True)
class Counter:
    """A counter as last seen. `since` is when the observer first saw the value, `unchanged` is the number of later
    reads that found the same value, and `looked` is when the last of these reads took place."""

    value: int
    since: Instant
    unchanged: int = 0
    looked: Instant | None = None

    def seen(self, value: int, now: Instant, interval: Duration) -> Counter:
        """Return the counter after another read. An unchanged value is ignored if the previous read was less than half
        an interval ago, because many reads in quick succession after an outage prove no more than a single one."""
        if value != self.value:
            return Counter(value, now)
        if now - (self.since if self.looked is None else self.looked) < 0.5 * interval:
            return self
        return Counter(value, self.since, self.unchanged + 1, now)

    def after_outage(self, most: int, now: Instant) -> Counter:
        """Return the counter after an outage, in which no node could send heartbeats. At most `most` of the earlier
        reads still count toward `unchanged`."""
        return replace(self, unchanged=min(self.unchanged, most), looked=now)


@dataclass(frozen=True)
class Observation:
    """An observer's knowledge of other nodes after its last read of the roster.

    Args:
        interval: seconds between two heartbeats.
        attempts: how many heartbeats a node may miss before it is late.
        counters: the heartbeat counters by key.
        registrations: all entries that the store contained at the last read.
        roster: the readable ones among these entries.
        leased: whether the store drops the entries of failed nodes.
        settled: the time from which a node without an entry may be considered lost.
        absent: members without an entry.
        looked: whether the observer has read the roster yet.
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
        """Return the observation before the first read."""
        return cls(settings.keep_alive_interval, settings.keep_alive_max_attempt)

    def after_look(self, found: tuple[Registration, ...], state: State, now: Instant) -> Observation:
        """Return the observation after another read. A node that has rewritten its entry is considered alive even if it
        has sent no heartbeat since. Otherwise, one observer could give a seat to a node that returns from an outage.
        Another observer that is still waiting for the node's heartbeat could then end the round."""
        leased = self.leased or any(item.beats is None for item in found)
        before = {item.key: item.entry for item in self.registrations}
        counters = {
            i.key: self.counters.get(i.key, Counter(i.beats, now)).seen(i.beats, now, self.interval)
            if i.entry == before.get(i.key)
            else Counter(i.beats, now)
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
        return replace(seen, roster=(*seen._gone(found, state), *roster))._with_absent(state, now)

    def _gone(self, found: tuple[Registration, ...], state: State) -> tuple[ObservedEntry, ...]:
        """Return the members whose entries have disappeared although no node has recorded their success or loss yet.
        The observer had seen that these members were done, or knows that their agents have ended."""
        here = {item.key for item in found}
        busy = set(state.busy) if state.open else set()
        return tuple(
            replace(seen, late=True, ended=seen.entry.key in self.ended)
            for seen in self.roster
            if seen.entry.key in busy
            and seen.entry.key not in here
            and (seen.entry.done == state.round or seen.entry.key in self.ended)
        )

    def _with_absent(self, state: State, now: Instant) -> Observation:
        """Record which members are absent. If a member is newly absent, postpone `settled`, because other entries may
        also disappear."""
        if not self.leased and self.registrations:
            return self
        absent = frozenset(state.busy) - {item.key for item in self.registrations}
        settled = max(self.settled, later(now, CONFIRM)) if absent - self.absent else self.settled
        return replace(self, absent=absent, settled=settled)

    def drops(self, own: str, found: tuple[Registration, ...]) -> bool:
        """Return whether the store has dropped the observer's `own` entry, according to the entries in `found`. Only a
        store with leases drops entries. A store without any entries may be such a store."""
        leased = self.leased or not found or any(item.beats is None for item in found)
        stood = not self.looked or any(item.key == own for item in self.registrations)
        return leased and stood and all(item.key != own for item in found)

    def after_outage(self, now: Instant) -> Observation:
        """Give nodes time for a few more reads before they are late. Also reset the time at which each node was first
        seen, because one of two agents with the same name may have ended during the outage."""
        most = max(self.attempts - 1 - DOUBTS, 0)
        counters = {key: counter.after_outage(most, now) for key, counter in self.counters.items()}
        return replace(self, counters=counters, roster=tuple(replace(seen, since=now) for seen in self.roster))

    def all_back_by(self, until: Instant) -> Observation:
        """Do not consider a node without an entry lost before `until`, so that nodes can announce themselves again."""
        return replace(self, settled=max(until, self.settled))

    def overdue_by_log(self, first: Collection[str], between: Collection[str], now: Instant) -> Observation:
        """Consider the `first` nodes in succession order late until their next heartbeat, because they would lead if
        they were alive. The nodes `between` them and the observer may be about to lead, so these nodes are late only
        after a few more reads. A node with a recent heartbeat is not late, because it may be alive but cut off."""
        since = Instant(now - self.interval * self.attempts)
        looks = {**dict.fromkeys(between, self.attempts - 1 - DOUBTS), **dict.fromkeys(first, self.attempts - 1)}
        late = {
            key: Counter(self.counters[key].value, since, max(unchanged, 0), now)
            for key, unchanged in looks.items()
            if key in self.counters and now - self.counters[key].since >= SURELY * self.interval
        }
        return replace(self, counters={**self.counters, **late})

    def late(self, key: str, now: Instant) -> bool:
        """Return whether the agent has ended, or its counter has been unchanged for too long and for too many reads."""
        if key in self.ended:
            return True
        counter = self.counters.get(key)
        if counter is None:
            return False
        return counter.unchanged >= self.attempts - 1 and now - counter.since >= self.interval * self.attempts

    def has_unreported(self, state: State) -> bool:
        """Return whether any agent that has ended is still alive according to the state, or still has an entry."""
        return any(key in state.busy or any(item.key == key for item in self.registrations) for key in self.ended)

    def dead(self, state: State, now: Instant) -> str | None:
        """Return the key of a useless entry, or None. An entry is useless if its node is not in a running round, and
        the node has been late for two failure timeouts or its agent has ended."""
        patience = 2 * self.interval * self.attempts
        idle = [item.key for item in self.registrations if not (state.open and state.seated(item.key))]
        for key in idle:  # including one whose entry cannot be read
            counter = self.counters.get(key)
            if counter is not None and now - counter.since >= patience and self.late(key, now):
                return key
        return next((key for key in idle if key in self.ended and key not in state.busy), None)


def holders(roster: Roster, state: State) -> dict[str, Entry]:
    """Return the owner of each node name. If two live agents share a name, a surviving member owns the name, because
    the other agent may have been suspended and replaced. Otherwise, the older agent that is ready owns the name."""
    names: dict[str, Entry] = {}
    for seen in roster:
        if not seen.late:
            first = names.setdefault(seen.entry.node, seen.entry)
            if first is not seen.entry and _claim(seen.entry, state) > _claim(first, state):
                names[seen.entry.node] = seen.entry
    return names


def _claim(entry: Entry, state: State) -> int:
    """Return the strength of the node's claim to its name, from 0 to 2."""
    if state.seated(entry.key) and entry.key not in state.gone:
        return 2
    return int(is_ready(entry, state))


def alive(roster: Roster, state: State) -> list[Entry]:
    """Return the nodes that are not late and own their names. A node whose name belongs to another node has to wait
    until the other node has left. If that takes too long, the waiting node is refused."""
    names = holders(roster, state)
    return [seen.entry for seen in roster if not seen.late and names[seen.entry.node] is seen.entry]


def is_ready(entry: Entry, state: State) -> bool:
    """Return whether the node waits for the next round and knows the last one. If an entry names a different round as
    the last one, the entry is old or refers to rounds that the store has lost. A member is not ready while its round is
    running or if it is leaving."""
    reported = entry.reported
    leaves = reported is not None and reported.leaves and reported.round == state.round
    stopped = state.stopped == state.round  # the last round's members must leave
    out = leaves or ((state.open or stopped) and state.seated(entry.key))
    return entry.waits and entry.after == state.round and not out


def waiting(roster: Roster, state: State) -> list[Entry]:
    """Return the live nodes that are waiting for the next round and are allowed to take part in it."""
    out = {*state.draining, *(key for key, why in state.refused if why)}
    return [e for e in alive(roster, state) if e.key not in out and is_ready(e, state)]


def ordered(entries: Sequence[Entry], before: Sequence[str]) -> list[Entry]:
    """Return the members in rank order.

    Survivors keep their order. If rank 0 has left, the first survivor rather than a newcomer becomes rank 0. Newcomers
    are sorted by host and then by age. They take the places of members that have left, and the remaining newcomers are
    added at the end.

    A node that asks for a rank (`rank_hint`) gets that rank if it exists. If two nodes ask for the same rank, the node
    that would otherwise have the lower rank gets it.

    Args:
        entries: the members, oldest first.
        before: the keys of the last round's members in rank order.
    """
    by_key = {entry.key: entry for entry in entries}
    survivors = set(before) & set(by_key)
    newcomers = iter(sorted((e for e in entries if e.key not in survivors), key=lambda e: natural_order(e.host)))
    places = _with_first([by_key.get(key) for key in before])
    order = [entry for place in places if (entry := place or next(newcomers, None)) is not None]
    return _with_hints([*order, *newcomers])


def arranged(order: list[Entry], before: Sequence[str], policy: RankPolicy | None) -> list[Entry]:
    """Return the members in the rank policy's order. `order` is their default order. For `before`, see `ordered`."""
    if policy is None:
        return order
    last_ranks = {key: rank for rank, key in enumerate(before)}
    candidates = [Candidate(entry.described, last_ranks.get(entry.key)) for entry in order]
    entries = {id(candidate): entry for candidate, entry in zip(candidates, order, strict=True)}
    return [entries[id(candidate)] for candidate in policy(candidates)]


def _with_first(places: list[Entry | None]) -> list[Entry | None]:
    """Move the first survivor to rank 0 if that rank is free."""
    first = next((place for place, entry in enumerate(places) if entry is not None), 0)
    if first:
        places[0], places[first] = places[first], None
    return places


def _with_hints(order: Sequence[Entry]) -> list[Entry]:
    hinted: dict[int, Entry] = {}
    for entry in order:
        if entry.rank_hint is not None and 0 <= entry.rank_hint < len(order):
            hinted.setdefault(entry.rank_hint, entry)
    keys = {entry.key for entry in hinted.values()}
    others = iter([entry for entry in order if entry.key not in keys])
    return [hinted[rank] if rank in hinted else next(others) for rank in range(len(order))]

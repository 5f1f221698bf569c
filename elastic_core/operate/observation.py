"""Observes a job from outside, without writing to its store. All times are on the observer's clock.

A watcher reads the store repeatedly until it has seen a heartbeat from every node or its deadline has passed.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.errors import NotFoundError, RendezvousConnectionError, RendezvousStateError
from elastic_core.rendezvous.codec import decoded_entry, decoded_state
from elastic_core.rendezvous.model import State
from elastic_core.rendezvous.roster import Observation, ObservedEntry, Registration, is_ready
from elastic_core.rendezvous.settings import settings_of
from elastic_core.support.bounded import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.compose.plan import Plan
    from elastic_core.interfaces.backend import Announced, RosterBackend
    from elastic_core.rendezvous.model import Entry
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.seal import HmacSeal

GRACE: Duration = 2.0
"""Seconds added to each time limit, to let the backend raise its own, more precise error first."""
_LOOKS_PER_INTERVAL = 5
_FOR_ONE_BEAT = 1.5  # intervals


@dataclass(frozen=True)
class HeartbeatState:
    """The state of a node's heartbeat.

    Args:
        age: seconds since the last observed heartbeat, or since the watcher started if none has been observed. None if
            the store shows no heartbeats, because it drops the entries of failed nodes itself.
        seen: whether a heartbeat has been seen.
        late: whether the node is considered failed. Either its heartbeat has timed out, or the job has recorded it as
            lost and no heartbeat has been seen.
    """

    age: Duration | None = None
    seen: bool = False
    late: bool = False


@dataclass(frozen=True)
class JobObservation:
    """A job as observed by a watcher.

    Args:
        since: when the watcher started.
        now: when it last read the store.
        nodes: the nodes' registrations in the store, with their heartbeat counters.
        state: the job's state, or None if no job has written one.
        first: the first observed value of each heartbeat counter, by the node's key.
        not_signed: how many values in the store are not signed with the job's secret.
    """

    since: Instant
    now: Instant
    nodes: Observation
    state: State | None = None
    first: Mapping[str, int] = field(default_factory=dict)
    not_signed: int = 0

    def after_look(self, state: bytes | None, announced: Sequence[Announced], now: Instant) -> JobObservation:
        """Return the observation after another read of the store.

        Raises:
            RendezvousStateError: the state has a different version, or is not a job's state.
        """
        known = None if state is None else decoded_state(state)
        found = tuple(Registration(item.key, _entry(item), item.beats) for item in announced)
        nodes = self.nodes.after_look(found, known or State(), now)
        first = {key: self.first.get(key, counter.value) for key, counter in nodes.counters.items()}
        return replace(self, now=now, nodes=nodes, state=known, first=first)

    @property
    def is_empty(self) -> bool:
        """Whether no job has used this endpoint."""
        return self.state is None and not self.nodes.registrations

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The nodes' entries, oldest first."""
        return tuple(item.entry for item in self.nodes.registrations if item.entry is not None)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The keys of entries that cannot be read."""
        return tuple(item.key for item in self.nodes.registrations if item.entry is None)

    @functools.cached_property
    def past(self) -> frozenset[str]:
        """The keys of nodes that the job has recorded as lost and that have not rejoined."""
        state = self.state
        if state is None:
            return frozenset()
        behind = (e.key for e in self.entries if not state.seated(e.key) and not is_ready(e, state))
        return frozenset((*state.gone, *behind))

    def beat(self, key: str) -> HeartbeatState:
        """Return the heartbeat state of the node with this entry key."""
        counter = self.nodes.counters.get(key)
        if counter is None:
            return HeartbeatState()
        seen = counter.value != self.first[key]
        lost = key in self.past and not seen
        return HeartbeatState(self.now - counter.since, seen, lost or self.nodes.late(key, self.now))

    @property
    def roster(self) -> Roster:
        """The roster as the watcher sees it."""
        return tuple(ObservedEntry(entry, self.beat(entry.key).late, self.since) for entry in self.entries)

    @property
    def silent(self) -> frozenset[str]:
        """The keys of nodes whose heartbeat has not been seen yet. The set is empty once the job is over."""
        if self.state is not None and self.state.closed:
            return frozenset()
        return frozenset(key for key in self.nodes.counters if not self.beat(key).seen)

    @property
    def pause(self) -> Duration:
        """The number of seconds between two reads of the store."""
        return self.nodes.interval / _LOOKS_PER_INTERVAL

    @property
    def longest(self) -> Duration:
        """The number of seconds without a heartbeat after which a node is considered failed."""
        return self.nodes.interval * (self.nodes.attempts + 0.5)

    @property
    def deadline(self) -> Instant:
        """The time at which to stop waiting for heartbeats. The watcher waits for the failure timeout. If the job has
        already recorded all silent nodes as lost, the wait is only one and a half heartbeat intervals."""
        return later(self.since, self.longest if self.silent - self.past else _FOR_ONE_BEAT * self.nodes.interval)


def _entry(announced: Announced) -> Entry | None:
    """Return the decoded entry, or None if it is invalid. Nodes also ignore such entries."""
    try:
        return decoded_entry(announced.entry, announced.key)
    except RendezvousStateError:
        return None


@dataclass(frozen=True)
class Watcher:
    """Reads a job's store. Only one thread at a time may use it. `pause` waits for the given number of seconds."""

    backend: RosterBackend
    clock: Clock
    pause: Callable[[Duration], object]
    seal: HmacSeal | None = None

    def look(self, job: JobObservation) -> JobObservation:
        """Read the store once."""
        announced = self.backend.roster()  # read before the state, so that the state is at least as recent
        found = self.backend.get_state()
        seen = job.after_look(None if found is None else found[0], announced, self.clock.now())
        return replace(seen, not_signed=self.seal.refused if self.seal else 0)

    def watch(self, job: JobObservation) -> JobObservation:
        """Read the store until every node's heartbeat has been seen or the deadline has passed."""
        while job.silent and job.now < job.deadline:
            self.pause(job.pause)
            job = self.look(job)
        return job


@contextlib.contextmanager
def observed(
    plan: Plan,
    timeout: Duration,
    clock: Clock | None = None,
    pause: Callable[[Duration], object] | None = None,
) -> Iterator[tuple[Watcher, JobObservation]]:
    """Yield a watcher for the job and the watcher's first observation. The store may take `timeout` seconds to answer.

    Raises:
        NotFoundError: no job with this id has used this endpoint.
        RendezvousConnectionError: the store does not answer.
        RendezvousStateError: the job's data cannot be read.
        ConfigurationError: the backend, its options or the secret file cannot be used.
    """
    settings = plan.settings
    with plan.opened(timeout) as (backend, seal, params):
        watcher = Watcher(backend, clock or SystemClock(), pause or threading.Event().wait, seal)
        begun = watcher.clock.now()
        empty = JobObservation(begun, begun, Observation.of(settings_of(params)))
        try:
            job = within(timeout + GRACE, lambda: watcher.look(empty), settings.rdzv_endpoint)
            if job.is_empty:
                unsigned = f" ({seal.refused} entries are not signed with this secret)" if seal.refused else ""
                raise NotFoundError(
                    f"no job with the id {settings.rdzv_id!r} at {settings.rdzv_endpoint}{unsigned}; --rdzv-id, "
                    "--rdzv-endpoint and --rdzv-secret-file must have the same values as on the job's nodes"
                )
            yield watcher, within(job.longest + timeout + GRACE, lambda: watcher.watch(job), settings.rdzv_endpoint)
        except RendezvousConnectionError as error:  # also one that the caller has raised
            if not plan.backend.record.hosted:
                raise
            message = f"{error}; if the job has ended, so has its store, which the job's nodes host"
            raise RendezvousConnectionError(message) from error

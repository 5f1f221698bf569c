"""A job as a watcher sees it from outside, timed on the watcher's own clock. A watcher only reads: it looks again and
again until every node gave a beat, or has had the time for one."""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.errors import NotFoundError, RendezvousStateError
from elastic_core.operate.target import opened, parameters
from elastic_core.rendezvous.codec import decoded_entry, decoded_state
from elastic_core.rendezvous.effects import Registration
from elastic_core.rendezvous.model import State
from elastic_core.rendezvous.observation import Observation
from elastic_core.rendezvous.roster import Seen, is_ready
from elastic_core.rendezvous.settings import settings_of
from elastic_core.support.bounded import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.backend import Announced, RosterBackend
    from elastic_core.rendezvous.model import Entry
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.seal import HmacSeal

GRACE: Duration = 2.0
"""Seconds beyond a bound in which the backend may give up by itself: its own error is more precise."""
_LOOKS_PER_INTERVAL = 5
_FOR_ONE_BEAT = 1.5  # intervals


@dataclass(frozen=True)
class Beat:
    """A node's sign of life.

    Args:
        age: seconds since its last beat was seen, or, without any, since the watcher began to look; None where the
            store itself drops the entries of nodes that are gone.
        seen: whether a beat was seen.
        late: whether the job takes the node for gone: the watcher has waited long enough, or the job says so, and no
            beat refuted it.
    """

    age: Duration | None = None
    seen: bool = False
    late: bool = False


@dataclass(frozen=True)
class JobObservation:
    """What a watcher knows after its last look.

    Args:
        since: when the watcher began.
        now: when it looked last.
        nodes: the registrations in the store, and the counters of their beats.
        state: None where no job has written one.
        first: every counter as it was seen first.
        not_signed: in how many places something stands that is not signed with the job's secret.
    """

    since: Instant
    now: Instant
    nodes: Observation
    state: State | None = None
    first: Mapping[str, int] = field(default_factory=dict)
    not_signed: int = 0

    def after_look(self, state: bytes | None, announced: Sequence[Announced], now: Instant) -> JobObservation:
        """After another look.

        Raises:
            RendezvousStateError: the state is of another version, or not a state at all.
        """
        known = None if state is None else decoded_state(state)
        found = tuple(Registration(item.key, _entry(item), item.beats) for item in announced)
        nodes = self.nodes.after_look(found, known or State(), now)
        first = {key: self.first.get(key, counter.value) for key, counter in nodes.counters.items()}
        return replace(self, now=now, nodes=nodes, state=known, first=first)

    @property
    def is_empty(self) -> bool:
        """Whether no job has met here."""
        return self.state is None and not self.nodes.registrations

    @property
    def entries(self) -> tuple[Entry, ...]:
        """As announced, oldest first."""
        return tuple(item.entry for item in self.nodes.registrations if item.entry is not None)

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Keys of entries that cannot be read."""
        return tuple(item.key for item in self.nodes.registrations if item.entry is None)

    @functools.cached_property
    def past(self) -> frozenset[str]:
        """Keys of nodes that the job has called gone: lost in the last round, or in an earlier one and not back."""
        state = self.state
        if state is None:
            return frozenset()
        behind = (e.key for e in self.entries if not state.seated(e.key) and not is_ready(e, state))
        return frozenset((*state.gone, *behind))

    def beat(self, key: str) -> Beat:
        """The sign of life of one entry."""
        counter = self.nodes.counters.get(key)
        if counter is None:
            return Beat()
        seen = counter.value != self.first[key]
        lost = key in self.past and not seen
        return Beat(self.now - counter.since, seen, lost or self.nodes.late(key, self.now))

    @property
    def roster(self) -> Roster:
        """The roster on which the nodes' own policy would decide."""
        return tuple(Seen(entry, self.beat(entry.key).late, self.since) for entry in self.entries)

    @property
    def silent(self) -> frozenset[str]:
        """Keys of nodes that gave no beat yet; once the job is over, none has to."""
        if self.state is not None and self.state.closed:
            return frozenset()
        return frozenset(key for key in self.nodes.counters if not self.beat(key).seen)

    @property
    def pause(self) -> Duration:
        """Seconds between two looks."""
        return self.nodes.interval / _LOOKS_PER_INTERVAL

    @property
    def longest(self) -> Duration:
        """Seconds after which a silent node is taken for gone."""
        return self.nodes.interval * (self.nodes.attempts + 0.5)

    @property
    def deadline(self) -> Instant:
        """When a node that is silent has had its time: for one beat, if the job has called it gone already."""
        return later(self.since, self.longest if self.silent - self.past else _FOR_ONE_BEAT * self.nodes.interval)


def _entry(announced: Announced) -> Entry | None:
    """None for one that the nodes pass over, too: one bad entry must not hide the others."""
    try:
        entry = decoded_entry(announced.entry)
    except RendezvousStateError:
        return None
    return entry if entry.key == announced.key else None


@dataclass(frozen=True)
class Watcher:
    """Looks at a job. Used from one thread at a time. `pause` waits for the given seconds."""

    backend: RosterBackend
    clock: Clock
    pause: Callable[[Duration], object]
    seal: HmacSeal | None = None

    def look(self, job: JobObservation) -> JobObservation:
        """One more look."""
        announced = self.backend.roster()  # before the state, which then is at least as new
        found = self.backend.get_state()
        seen = job.after_look(None if found is None else found[0], announced, self.clock.now())
        return replace(seen, not_signed=self.seal.refused if self.seal else 0)

    def watch(self, job: JobObservation) -> JobObservation:
        """Look until a beat of every node was seen, or the nodes without one have had their time."""
        while job.silent and job.now < job.deadline:
            self.pause(job.pause)
            job = self.look(job)
        return job


@contextlib.contextmanager
def observed(
    settings: Settings,
    manager: PluginManager,
    timeout: Duration,
    clock: Clock | None = None,
    pause: Callable[[Duration], object] | None = None,
) -> Iterator[tuple[Watcher, JobObservation]]:
    """A watcher of the job, and what it has seen. `timeout`: seconds for the store to answer.

    Raises:
        NotFoundError: no job of this id has met here.
        RendezvousConnectionError, RendezvousStateError, ConfigurationError.
    """
    params = parameters(settings, manager, timeout)
    with opened(params, manager) as (backend, seal):
        watcher = Watcher(backend, clock or SystemClock(), pause or threading.Event().wait, seal)
        begun = watcher.clock.now()
        empty = JobObservation(begun, begun, Observation.of(settings_of(params)))
        job = within(timeout + GRACE, lambda: watcher.look(empty), settings.rdzv_endpoint)
        if job.is_empty:
            unsigned = f" ({seal.refused} entries there are not signed with this secret)" if seal.refused else ""
            raise NotFoundError(
                f"no job of the id {settings.rdzv_id!r} has met at {settings.rdzv_endpoint} yet{unsigned}; --rdzv-id, "
                "--rdzv-endpoint and --rdzv-secret-file must be those of its nodes"
            )
        yield watcher, within(job.longest + timeout + GRACE, lambda: watcher.watch(job), settings.rdzv_endpoint)

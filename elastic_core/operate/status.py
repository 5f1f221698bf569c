"""`elastic status`: looks at a job again and again until everybody gave a beat, or has had the time for it, and says
what it sees. Writes nothing."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock, later
from elastic_core.errors import NotFoundError
from elastic_core.operate.sight import first_sight, looked
from elastic_core.operate.snapshot import is_empty, snapshot_of
from elastic_core.operate.target import opened, parameters
from elastic_core.rendezvous.settings import settings_of
from elastic_core.support.bounded import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.operate.sight import Sight
    from elastic_core.operate.snapshot import Snapshot
    from elastic_core.operate.target import Target

_GRACE: Duration = 2.0  # seconds for the backend to give up by itself: it knows better what is wrong
_LOOKS_PER_INTERVAL = 5
_FOR_ONE_BEAT = 1.5  # intervals


def status(
    target: Target,
    manager: PluginManager,
    timeout: Duration,
    clock: Clock | None = None,
    pause: Callable[[Duration], object] | None = None,
) -> Snapshot:
    """The job as it stands. `timeout`: seconds for the store to answer.

    Raises:
        NotFoundError: no job of this id has met here.
        RendezvousConnectionError, RendezvousStateError, ConfigurationError.
    """
    params = parameters(target, manager, timeout)
    settings = settings_of(params)
    with opened(params, manager) as backend:
        watcher = Watcher(backend, clock or SystemClock(), pause or threading.Event().wait)
        begun = first_sight(watcher.clock.now(), settings.keep_alive_interval, settings.keep_alive_max_attempt)
        return snapshot_of(seen(watcher, begun, target, timeout), target)


def seen(watcher: Watcher, begun: Sight, target: Target, timeout: Duration) -> Sight:
    """What there is to see. Raises as `status` does."""
    at_once = within(timeout + _GRACE, lambda: watcher.look(begun), target.endpoint)
    if is_empty(at_once):
        raise NotFoundError(
            f"no job of the id {target.run_id!r} has met at {target.endpoint} yet; check --rdzv-id and "
            "--rdzv-endpoint, which must be those of its nodes"
        )
    return within(longest(at_once) + timeout + _GRACE, lambda: watcher.watch(at_once), target.endpoint)


@dataclass(frozen=True)
class Watcher:
    """Looks. Used from one thread at a time.

    Args:
        pause: waits for so many seconds.
    """

    backend: RosterBackend
    clock: Clock
    pause: Callable[[Duration], object]

    def look(self, sight: Sight) -> Sight:
        """One look more."""
        announced = self.backend.roster()  # before the state, which then is at least as new
        found = self.backend.get_state()
        return looked(sight, None if found is None else found[0], announced, self.clock.now())

    def watch(self, sight: Sight) -> Sight:
        """Look until every beat was seen, or for the time after which a silent node is called gone. Those that the job
        has called gone get the time for one beat."""
        while sight.silent and sight.now < _deadline(sight):
            self.pause(between_looks(sight))
            sight = self.look(sight)
        return sight


def _deadline(sight: Sight) -> Instant:
    if sight.silent - sight.past:
        return later(sight.since, longest(sight))
    return later(sight.since, _FOR_ONE_BEAT * sight.observation.interval)


def between_looks(sight: Sight) -> Duration:
    """Seconds."""
    return sight.observation.interval / _LOOKS_PER_INTERVAL


def longest(sight: Sight) -> Duration:
    """Seconds that `watch` may take, the answers of the store aside."""
    return sight.observation.interval * (sight.observation.attempts + 0.5)

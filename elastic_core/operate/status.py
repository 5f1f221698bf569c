"""`elastic status`: looks at a job, and says what it sees."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from elastic_core.clock import SystemClock
from elastic_core.errors import NotFoundError
from elastic_core.operate.opening import opened, parameters
from elastic_core.operate.sight import first_sight
from elastic_core.operate.snapshot import is_empty, snapshot_of
from elastic_core.operate.watch import Watcher, longest
from elastic_core.rendezvous.settings import settings_of
from elastic_core.support.bounded import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.operate.commands import Target
    from elastic_core.operate.sight import Sight
    from elastic_core.operate.snapshot import Snapshot

_GRACE: Duration = 2.0  # seconds for the backend to give up by itself: it knows better what is wrong


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

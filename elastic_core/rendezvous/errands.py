"""Errands: waiting until the keeper has done what it was asked for. Every wait is bounded, and ends early where nothing
will be done any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.rendezvous.reasons import no_answer

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import RosterBackend
    from elastic_core.rendezvous.keeper import Keeper
    from elastic_core.rendezvous.part import Part
    from elastic_core.rendezvous.threads import KeeperThreads
    from elastic_core.rendezvous.ticket import Ticket
    from elastic_core.rendezvous.views import Views

PATIENCE: Duration = 5.0
"""Seconds that closing and leaving wait for the store."""
_PATIENCE_OUTAGE: Duration = 1.0  # the same, when it has not answered before
_LINGER: Duration = 5.0  # seconds that the host of the store waits for the others to have seen that the job is over


class Errands:
    """May be used from any thread but the keeper's."""

    def __init__(
        self, keeper: Keeper, threads: KeeperThreads, backend: RosterBackend, views: Views, part: Part, clock: Clock
    ) -> None:
        self._keeper = keeper
        self._threads = threads
        self._backend = backend
        self._views = views
        self._part = part
        self._clock = clock

    def carry_out(self, ticket: Ticket, timeout: Duration = PATIENCE) -> None:
        """Wait for the keeper to have done it. Raises what kept it from that."""
        told = self.try_it(ticket, timeout)
        if ticket.fault is not None:
            raise ticket.fault
        if not told:
            self._part.check()
            raise no_answer(self._views.last, timeout)

    def try_it(self, ticket: Ticket, timeout: Duration) -> bool:
        """The same; whether it was done."""
        self._threads.wake()
        return not self._threads.stopped and ticket.done.wait(timeout) and ticket.fault is None

    def say_goodbye(self) -> bool:
        """Withdraw, as the last thing that this node does. Whether the others can know."""
        patience = PATIENCE if self._views.last.outage is None else _PATIENCE_OUTAGE
        told = self.try_it(self._keeper.withdraw(), patience)
        self._linger()
        return told

    def _linger(self) -> None:
        """The host of the store leaves last, so that everybody learns how the job ended: bounded, for it can be that
        somebody never comes to ask."""
        view = self._views.last
        if not self._backend.hosts_store or view.state is None or view.state.closed is None or view.outage is not None:
            return
        until = later(self._clock.now(), _LINGER)
        while self._clock.now() < until and self._others_are_there(until):
            self._threads.wait_for_roster(until)

    def _others_are_there(self, until: Instant) -> bool:
        if not self.try_it(self._keeper.look(), max(until - self._clock.now(), 0.0)):
            return False
        roster, _ = self._keeper.seen
        return any(not seen.late for seen in roster)

"""The join: how a node comes to its next round, from the first answer of the store to the round's own store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.errors import RendezvousGracefulExitError
from elastic_core.interfaces.handler import RendezvousInfo, RendezvousStoreInfo
from elastic_core.interfaces.node import Round
from elastic_core.rendezvous.participant import Standing, missed, standing
from elastic_core.rendezvous.progress import progress_text
from elastic_core.rendezvous.reasons import no_answer, no_place, too_few
from elastic_core.rendezvous.seats import Members
from elastic_core.rendezvous.state import State

if TYPE_CHECKING:
    from elastic_core.clock import Clock, Instant
    from elastic_core.interfaces.backend import RoundStores
    from elastic_core.rendezvous.keeper import Keeper
    from elastic_core.rendezvous.part import Part
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.views import Views


class Join:
    """One at a time; it waits for views, and ends early when the node leaves or is shut down in another thread."""

    def __init__(
        self,
        settings: RendezvousSettings,
        part: Part,
        views: Views,
        keeper: Keeper,
        stores: RoundStores,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._part = part
        self._views = views
        self._keeper = keeper
        self._stores = stores
        self._clock = clock

    def next_round(self) -> RendezvousInfo:
        """Blocks until the node is in it. Raises a RendezvousError that says why it never will be."""
        try:
            return self._joined(later(self._clock.now(), self._settings.timeout.join))
        except BaseException:
            self._part.step_back()
            raise

    def seen_so_far(self) -> str:
        """Who is there, and who is missing, in one line."""
        view, (roster, _) = self._views.last, self._keeper.seen
        return progress_text(view.state, view.gathering, roster, self._settings, self._part.key)

    def _joined(self, deadline: Instant) -> RendezvousInfo:
        was_closed = self._connected(deadline).closed is not None and self._part.round == 0
        self._part.give_up_round()
        where = self._stores.reserve()
        self._part.want(after=self._part.round, where=where)
        state = self._formed(deadline, was_closed)
        self._part.round = state.round  # from here on: what fails below wants a newer one
        info = self._info(state)
        if self._part.shut or self._part.left:  # while the store was made
            self._stores.release()
            self._check()
        self._part.running = True
        return info

    def _connected(self, deadline: Instant) -> State:
        """The state as first read."""
        with self._views.changed:
            while True:
                self._check()
                if self._views.last.state is not None:
                    return self._views.last.state
                if not self._views.wait(deadline):
                    raise no_answer(self._views.last, self._settings.timeout.join)

    def _formed(self, deadline: Instant, was_closed: bool) -> State:
        """The state in which this node is a member of the next round. A node that waits while another round runs does
        so without limit; the deadline is for gathering."""
        with self._views.changed:
            while True:
                self._check()
                state = self._views.last.state or State()
                stands = self._stands(state)
                if stands is Standing.MEMBER:
                    return state
                if stands in (Standing.CLOSED, Standing.DRAINED, Standing.REFUSED):
                    raise no_place(state, stands, self._part.key, self._settings.run_id, was_closed)
                if stands in (Standing.SPARE, Standing.WAITING) and self._views.last.outage is None:
                    self._views.wait(None)
                    deadline = later(self._clock.now(), self._settings.timeout.join)
                elif not self._views.wait(deadline):
                    self._time_out()

    def _stands(self, state: State) -> Standing:
        over = missed(state, self._part.key, self._part.after)
        if over is not None:
            self._part.want(after=over)
        return standing(state, self._part.key, self._part.after, self._settings.max_nodes)

    def _check(self) -> None:
        self._part.check()
        if self._part.left:
            raise RendezvousGracefulExitError("this node left the rendezvous while it was joining")

    def _time_out(self) -> None:
        view = self._views.last
        if view.outage is not None or view.fault is not None:
            raise no_answer(view, self._settings.timeout.join)
        raise too_few(self._settings, self.seen_so_far())

    def _info(self, state: State) -> RendezvousInfo:
        rank = state.rank(self._part.key)
        assert rank is not None
        host = state.seats[0]
        where = RendezvousStoreInfo(host.member.address, host.port)
        store = self._stores.open(state.round, where, rank == 0)
        agreed = Round(state.round, Members(state.seats), state.restarts, state.reason)
        return RendezvousInfo(store, rank, len(state.seats), where, agreed)

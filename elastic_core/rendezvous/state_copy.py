"""This node's copy of the state, and the fenced writes by which it changes what stands in the store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.errors import RendezvousConnectionError
from elastic_core.log import get_logger
from elastic_core.rendezvous.codec import decoded_state, encoded_state
from elastic_core.rendezvous.state import State, recovered

if TYPE_CHECKING:
    from elastic_core.clock import Clock
    from elastic_core.interfaces.backend import RosterBackend, Token
    from elastic_core.rendezvous.known import Known
    from elastic_core.rendezvous.lookout import Lookout
    from elastic_core.rendezvous.reach import Reach
    from elastic_core.rendezvous.ticket import Ticket

MOST_REFUSALS = 64
"""Refused writes in one turn; whoever refuses us makes progress, and our turn comes."""


class StateCopy:
    """Used from one thread. The copy itself is in the view."""

    def __init__(self, backend: RosterBackend, reach: Reach, known: Known, lookout: Lookout, clock: Clock) -> None:
        self._backend = backend
        self._reach = reach
        self._known = known
        self._lookout = lookout
        self._clock = clock

    def read(self) -> None:
        """Take over what stands in the store."""
        self._known.state_news = False
        self._take(self._reach.ask(self._backend.get_state))

    def write(self, state: State) -> bool:
        """Write the state in the place of the one that is known. Whether it was written; if not, somebody was first,
        and what they wrote is known."""
        return self._put(replace(state, serial=state.serial + 1), self._known.view.token)

    def amend(self, ticket: Ticket) -> None:
        """Change the state as asked for, again for as long as others are first. Raises what the ticket's action raises,
        which it then tells as its fault, and RendezvousConnectionError if others always are."""
        action = ticket.action
        assert action is not None
        for _ in range(MOST_REFUSALS):
            state = self._known.state
            try:
                changed = action(state)
            except Exception as error:
                ticket.fault = error
                raise
            if changed is state or self.write(changed):
                return
        raise RendezvousConnectionError(
            f"expected to write the rendezvous state within {MOST_REFUSALS} attempts, found that others always did so "
            "first"
        )

    def _take(self, found: tuple[bytes, Token] | None) -> None:
        """A store that knows less than we do has lost its memory (its host was started anew): it gets back what we
        know, from whoever is first."""
        known = self._known.view.state
        if found is not None and found[1] == self._known.view.token and known is not None:
            return
        state = decoded_state(found[0]) if found is not None else State()
        token = None if found is None else found[1]
        due = state if known is None else recovered(known, state)
        if due is not state:
            self._give_back(due, token)
            return
        if state == known and state.round:  # another write of the same: somebody gave it back
            self._known.lost_entry()
        self._known.line_news = bool(state.round) and not state.open and not state.closed and not state.survivors
        self._known.took(state, token)

    def _give_back(self, known: State, token: Token | None) -> None:
        get_logger().warning("store lost its state", round=known.round)
        self._lookout.expect_all_back(self._clock.now())
        self._known.lost_entry()
        self._put(known, token)

    def _put(self, state: State, token: Token | None) -> bool:
        """Write the state in the place of the one whose token we hold: that token is what keeps a node that has slept
        from writing what it decided about a state of the past."""
        found = self._reach.ask(lambda: self._backend.set_state(encoded_state(state), token))
        if found is None:
            self.read()
            return False
        data, token, written = found
        if written:
            self._known.took(state, token)
        else:
            self._take((data, token))
        return written

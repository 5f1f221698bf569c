"""The keeper: brings the store to what one node wants, and follows what the others do. All use of the backend's main
connection happens here, in `turn`, which one thread calls again and again: when it is due, and when there is news.

What the node wants is kept as a level, not as an edge: an entry that should be announced, and changes of the state
that should be made ("amendments"). An answer that was lost, an outage, a refused write: the next turn looks at what
stands in the store and goes on from there.

A turn goes through the keeper's parts, which share what is `Known`: `OwnEntry` and `StateCopy` say what this node has
in the store, `Line` whether it leads, `Lookout` what it sees of the others, `Reach` whether the store answers.
"""

from __future__ import annotations

import collections
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.errors import RendezvousConnectionError, RendezvousError
from elastic_core.log import get_logger
from elastic_core.rendezvous.absence import goes_without
from elastic_core.rendezvous.decide import Wait, Write, decide
from elastic_core.rendezvous.known import Known
from elastic_core.rendezvous.line import Line
from elastic_core.rendezvous.lookout import Lookout
from elastic_core.rendezvous.own_entry import OwnEntry
from elastic_core.rendezvous.reach import Reach
from elastic_core.rendezvous.state_copy import MOST_REFUSALS, StateCopy
from elastic_core.rendezvous.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration, Instant
    from elastic_core.interfaces.backend import Announced, RosterBackend
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.liveness import Liveness
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.state import State
    from elastic_core.rendezvous.view import View

_IDLE: Duration = 5.0  # between two turns of a node that wants nothing and hears no news


class Keeper:
    """See above.

    Args:
        entry: of this node, before its first round.
        publish: receives every new view, in the thread that turns.
    """

    def __init__(
        self,
        backend: RosterBackend,
        settings: RendezvousSettings,
        entry: Entry,
        clock: Clock,
        publish: Callable[[View], None],
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._clock = clock
        self._tickets: collections.deque[Ticket] = collections.deque()
        self._looks: collections.deque[Ticket] = collections.deque()
        self._decide_at: Instant | None = None
        self._known = Known(entry.key, publish)
        self._reach = Reach(clock, settings, self._was_away)
        self._lookout = Lookout(entry.key, settings)
        self._copy = StateCopy(backend, self._reach, self._known, self._lookout, clock)
        self._line = Line(entry.key, backend, self._reach, self._known, self._lookout, settings)
        self._entry = OwnEntry(
            entry.key, backend, self._reach, self._known, self._copy, self._line, clock, settings.keep_alive_interval
        )

    # -- what others ask for; any thread, carried out by the next turn

    def want(self, entry: Entry) -> None:
        """Announce this entry, until another one is wanted."""
        self._entry.wanted = entry

    def withdraw(self) -> Ticket:
        """Take the entry back, after the amendments asked for before; unless one is wanted again by then."""
        self._entry.wanted = None
        ticket = Ticket()
        self._tickets.append(ticket)
        return ticket

    def amend(self, action: Callable[[State], State]) -> Ticket:
        """Change the state. `action` is pure, and gives back the same object when there is nothing (more) to change; it
        is called again for as long as others write at the same time."""
        ticket = Ticket(action)
        self._tickets.append(ticket)
        return ticket

    def look(self) -> Ticket:
        """See who is there, as the leader does with every beat."""
        ticket = Ticket()
        self._looks.append(ticket)
        return ticket

    def state_changed(self) -> None:
        """Somebody wrote the state."""
        self._known.state_news = True

    def roster_changed(self) -> None:
        """Somebody came or went."""
        self._known.roster_news = True

    # -- what it tells; any thread

    @property
    def view(self) -> View:
        """What this node knows."""
        return self._known.view

    @property
    def leading(self) -> bool:
        """Whether this node wants to be told of changes of the roster."""
        return self._line.leading

    @property
    def seen(self) -> tuple[Roster, Liveness]:
        """The roster and the beats as seen last by this node."""
        return self._lookout.roster, self._lookout.liveness

    def out_of_reach_since(self) -> Instant | None:
        """Since when it has tried to reach the store without an answer, on the clock of its own; None if nothing is
        being tried and the last attempt was answered. An attempt that hangs counts too."""
        return self._reach.since

    def notice_silence(self) -> Instant:
        """Log it when an attempt to reach the store hangs. Returns when to look again."""
        return self._reach.notice()

    # -- one turn

    def turn(self) -> Instant:
        """Do what is due. Returns when the next turn is due, if no news comes before."""
        begun = self._clock.now()
        self._reach.begin(begun)
        try:
            due = self._work(begun)
        except RendezvousConnectionError as error:
            return self._outage(error)
        except Exception as error:  # noqa: BLE001 - one fault must not end the turns, and the beats with them
            return self._fault(error)
        self._reach.end()
        self._known.show(replace(self._known.view, outage=None, fault=None))
        return due

    def _work(self, now: Instant) -> Instant:
        # Beats come first: whatever else goes wrong in a turn, the others do not call this node gone for it.
        self._entry.beat(now)
        self._entry.restore()
        if self._known.state_news or self._known.view.state is None:
            self._copy.read()
        # A failure is told before the node is ready for the next round: else the round ends for another cause.
        self._carry_out()
        self._entry.keep()
        if self._known.line_news and self._known.view.announced is not None:
            self._line.recount()
        self._line.fill_vacancy(now)
        if self._line.leading or self._looks or self._line.is_first():
            self._see(self._clock.now())
        return self._due()

    def _due(self) -> Instant:
        if self._entry.wanted is None:
            return later(self._clock.now(), _IDLE)
        if self._known.view.announced is None:  # what it wants is outdated; it will be told what it wants next
            return later(self._clock.now(), self._settings.keep_alive_interval)
        if self._decide_at is None or not self._line.leading:
            return self._entry.next_beat
        return min(self._entry.next_beat, self._decide_at)

    # -- what goes wrong

    def _was_away(self, now: Instant) -> None:
        """The store was away, or slept. What it does for those that do not beat it may have done to all: until they had
        the time to announce themselves anew, as we do, who has no entry is not lost."""
        if self._known.state.round:
            self._lookout.expect_all_back(now)

    def _outage(self, error: RendezvousConnectionError) -> Instant:
        # The store may come back without its memory: then our entry is to be announced anew.
        self._known.unsure()
        self._known.show(replace(self._known.view, outage=error, announced=None))
        self._reach.fail(error)
        return self._reach.pause()

    def _fault(self, error: Exception) -> Instant:
        if type(error) is not type(self._known.view.fault):
            trace = None if isinstance(error, RendezvousError) else error  # whose words say it all
            get_logger().warning("rendezvous fault", reason=f"{type(error).__name__}: {error}", exc_info=trace)
        # What has tried to reach the store stays open: a backend may tell of an outage in words that we do not know.
        self._known.unsure()
        self._known.show(replace(self._known.view, fault=error))
        return self._reach.pause()

    # -- what was asked for

    def _carry_out(self) -> None:
        while self._tickets:
            ticket = self._tickets[0]
            try:
                self._carry(ticket)
            except Exception:
                if ticket.fault is not None:  # else it stays, and is tried again
                    self._finish(ticket)
                raise
            self._finish(ticket)

    def _carry(self, ticket: Ticket) -> None:
        if ticket.action is None:
            self._entry.withdraw()
        else:
            self._copy.amend(ticket)

    def _finish(self, ticket: Ticket) -> None:
        self._tickets.popleft()
        ticket.done.set()

    # -- deciding

    def _see(self, now: Instant) -> None:
        """Look at the roster if there is news of it, and decide. A state is never decided about by a roster that was
        read before it: who announced itself in between would look as if it had not."""
        for _ in range(MOST_REFUSALS):
            if self._known.roster_news or self._looks:
                self._known.roster_news = False
                self._observe(self._reach.ask(self._backend.roster), now)
            if not self._decide(now):
                break
        while self._looks:
            self._looks.popleft().done.set()

    def _observe(self, announced: tuple[Announced, ...], now: Instant) -> None:
        if self._lookout.look(announced) and self._known.view.announced is not None:
            self._come_back(now)
        self._lookout.judge(self._known.state, now)

    def _come_back(self, now: Instant) -> None:
        """The store has dropped the entry of a node that lives, and perhaps those of others."""
        get_logger().warning("entry dropped")
        self._was_away(now)
        self._known.show(replace(self._known.view, announced=None))
        self._entry.restore()

    def _decide(self, now: Instant) -> bool:
        """One decision, carried out if this node leads. Whether there may be more to decide."""
        state, roster, settled = self._known.state, self._lookout.roster, self._lookout.settled
        since = self._lookout.enough_since(state, now)
        decision = decide(roster, state, self._settings, now, since, settled)
        if isinstance(decision, Wait):
            self._decide_at = decision.until if self._line.leading else None
            self._tell(decision, state)
            return False
        if now < settled and goes_without(state, decision.state, roster):
            self._decide_at = settled
            return False
        return self._line.leading and self._enact(decision)

    def _tell(self, decision: Wait, state: State) -> None:
        gathering, waiting = None if state.open else decision, self._lookout.count_waiting(state)
        self._known.show(replace(self._known.view, gathering=gathering, waiting=waiting))

    def _enact(self, decision: Write) -> bool:
        self._decide_at = None
        if self._copy.write(decision.state):
            get_logger().debug("rendezvous state written", round=decision.state.round, reason=decision.reason)
        return True

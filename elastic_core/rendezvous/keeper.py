"""The keeper: brings the store to what one node wants, and follows what the others do. All use of the backend's main
connection happens here, in `turn`, which one thread calls again and again: when it is due, and when there is news.

What the node wants is kept as a level, not as an edge: an entry that should be announced, and changes of the state
that should be made ("amendments"). An answer that was lost, an outage, a refused write: the next turn looks at what
stands in the store and goes on from there.
"""

from __future__ import annotations

import collections
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from elastic_core.clock import Instant, later
from elastic_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from elastic_core.log import get_logger
from elastic_core.rendezvous.codec import decoded_entry, decoded_state, encoded_entry, encoded_state
from elastic_core.rendezvous.decide import Wait, Write, decide, enough
from elastic_core.rendezvous.liveness import Liveness
from elastic_core.rendezvous.participant import Lead, lead
from elastic_core.rendezvous.pulse import Pulse
from elastic_core.rendezvous.roster import Seen, waiting
from elastic_core.rendezvous.state import State, recovered

if TYPE_CHECKING:
    from collections.abc import Callable

    from elastic_core.clock import Clock, Duration
    from elastic_core.interfaces.backend import Announced, RosterBackend, Token
    from elastic_core.rendezvous.entry import Entry
    from elastic_core.rendezvous.roster import Roster
    from elastic_core.rendezvous.settings import RendezvousSettings

T = TypeVar("T")
_FIRST_RETRY: Duration = 0.05
_LONGEST_RETRY: Duration = 1.0
_MOST_REFUSALS = 64  # in one turn; whoever refuses us makes progress, and our turn comes
_IDLE: Duration = 5.0  # between two turns of a node that wants nothing and hears no news
_SLOW = 0.2  # windows that an answer may take; in longer ones the store was away
_DOUBTS = 2  # looks at nodes that may be late, by one that has only just begun to look


@dataclass(frozen=True)
class View:
    """What a node knows. Frozen; a new one is published whenever something changed.

    Args:
        state: the last state read, None before the first.
        token: of its write.
        announced: the entry that stands in the store.
        gathering: what the round waits for, as seen last; None if this node has not looked.
        waiting: nodes that wait, as seen last.
        outage: why the store cannot be reached now; None while it can.
        fault: what went wrong in the last turn beside that; None if it went through.
    """

    state: State | None = None
    token: Token | None = None
    announced: Entry | None = None
    gathering: Wait | None = None
    waiting: int = 0
    outage: RendezvousConnectionError | None = None
    fault: Exception | None = None


class Ticket:
    """Something that the keeper was asked for. `done` is set when it has been carried out, or when `fault` says why it
    never can be."""

    def __init__(self, action: Callable[[State], State] | None = None) -> None:
        self.action = action
        self.done = threading.Event()
        self.fault: Exception | None = None


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
        self._key = entry.key
        self._node = entry.node
        self._clock = clock
        self._publish = publish
        self._view = View()
        self._wanted: Entry | None = None
        self._stood: Entry | None = None
        self._seated_in = 0  # the last round that formed with this node
        self._tickets: collections.deque[Ticket] = collections.deque()
        self._looks: collections.deque[Ticket] = collections.deque()
        self._state_news = True
        self._roster_news = True
        self._older = 0
        self._deserted = False
        self._leading = False
        self._pulse = Pulse(settings.window, settings.keep_alive_interval)
        self._liveness = Liveness(settings.keep_alive_interval, settings.keep_alive_max_attempt)
        self._first_seen: dict[str, Instant] = {}
        self._entries: dict[bytes, Entry | None] = {}
        self._roster: Roster = ()
        self._enough: tuple[int, Instant] | None = None
        self._decide_at: Instant | None = None
        self._next_beat = Instant(float("-inf"))
        self._beats = 0
        self._returning_until = Instant(float("-inf"))
        self._retry = _FIRST_RETRY
        self._trying_since: Instant | None = None
        self._outage_told = False

    # -- what others ask for; any thread, carried out by the next turn

    def want(self, entry: Entry) -> None:
        """Announce this entry, until another one is wanted."""
        self._wanted = entry

    def withdraw(self) -> Ticket:
        """Take the entry back, after the amendments asked for before; unless one is wanted again by then."""
        self._wanted = None
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
        self._state_news = True

    def roster_changed(self) -> None:
        """Somebody came or went."""
        self._roster_news = True

    # -- what it tells

    @property
    def view(self) -> View:
        return self._view

    @property
    def leading(self) -> bool:
        """Whether this node wants to be told of changes of the roster."""
        return self._leading

    @property
    def lacking(self) -> int:
        """How many announcements this node needs to be told of at once, while nodes gather: half of those that lack, so
        that a thousand of them wake it ten times and not a thousand. It looks with every beat besides."""
        wait = self._view.gathering
        if wait is None:
            return 1
        return max(1, (len(wait.missing) or wait.wanted - wait.joined) // 2)

    def out_of_reach_since(self) -> Instant | None:
        """Since when it has tried to reach the store without an answer, on the clock of its own; None if nothing is
        being tried and the last attempt was answered. Any thread: an attempt that hangs counts too."""
        return self._trying_since

    def notice_silence(self) -> Instant:
        """Log it when an attempt to reach the store hangs: the thread that turns hangs with it. Any other thread.
        Returns when to look again."""
        self._tell_outage(str(self._view.outage or "it does not answer"))
        since, now, patience = self._trying_since, self._clock.now(), self._settings.timeout.heartbeat
        return later(now if since is None or now - since >= patience else since, patience)

    @property
    def seen(self) -> tuple[Roster, Liveness]:
        """The roster and the beats as seen last by this node."""
        return self._roster, self._liveness

    # -- one turn

    def turn(self) -> Instant:
        """Do what is due. Returns when the next turn is due, if no news comes before."""
        begun = self._clock.now()
        if self._trying_since is None:
            self._trying_since = begun
        try:
            due = self._work(begun)
        except RendezvousConnectionError as error:
            return self._outage(error)
        except Exception as error:  # noqa: BLE001 - one fault must not end the turns, and the beats with them
            return self._fault(error)
        self._trying_since = None
        self._retry = _FIRST_RETRY
        self._well()
        return due

    def _work(self, now: Instant) -> Instant:
        # Beats come first: whatever else goes wrong in a turn, the others do not call this node gone for it.
        if self._wanted is not None and self._view.announced is not None and now >= self._next_beat:
            self._beat(now)
        self._restore_entry()
        if self._state_news or self._view.state is None:
            self._read()
        # A failure is told before the node is ready for the next round: else the round ends for another cause.
        self._carry_out()
        self._keep_entry()
        if self._deserted and self._view.announced is not None:
            self._recount()
        self._fill_vacancy(now)
        if self._leading or self._looks or self._is_first():
            self._see(self._clock.now())
        return self._due()

    def _due(self) -> Instant:
        if self._wanted is None:
            return later(self._clock.now(), _IDLE)
        if self._view.announced is None:  # what it wants is outdated; it will be told what it wants next
            return later(self._clock.now(), self._settings.keep_alive_interval)
        if self._decide_at is None or not self._leading:
            return self._next_beat
        return min(self._next_beat, self._decide_at)

    def _ask(self, operation: Callable[[], T]) -> T:
        """An operation of the backend's. Its answer counts at once: the rest of the turn may take long."""
        begun = self._clock.now()
        found = operation()
        now = self._trying_since = self._clock.now()
        if self._view.outage is not None or now - begun > _SLOW * self._settings.window:
            self._expect_all_back(now)
        return found

    def _expect_all_back(self, now: Instant) -> None:
        """The store was away, or slept. What it does for those that do not beat it may have done to all: until they had
        the time to announce themselves anew, as we do, who has no entry is not lost."""
        if self._view.state is not None and self._view.state.round:
            self._returning_until = later(now, self._settings.window)

    def _outage(self, error: RendezvousConnectionError) -> Instant:
        now = self._clock.now()
        # The store may come back without its memory: then our entry is to be announced anew.
        self._state_news = self._roster_news = True
        self._show(replace(self._view, outage=error, announced=None))
        self._tell_outage(str(error))
        due = later(now, self._retry)
        self._retry = min(2 * self._retry, _LONGEST_RETRY)
        return due

    def _tell_outage(self, reason: str) -> None:
        """Once, when it has lasted for as long as a beat may take."""
        since, now = self._trying_since, self._clock.now()
        if since is not None and now - since >= self._settings.timeout.heartbeat and not self._outage_told:
            self._outage_told = True
            get_logger().warning("store out of reach", seconds=round(now - since, 1), reason=reason)

    def _well(self) -> None:
        """The turn went through: what went wrong before is past."""
        if self._outage_told:
            self._outage_told = False
            get_logger().info("store is back")
        self._show(replace(self._view, outage=None, fault=None))

    def _fault(self, error: Exception) -> Instant:
        if type(error) is not type(self._view.fault):
            trace = None if isinstance(error, RendezvousError) else error  # whose words say it all
            get_logger().warning("rendezvous fault", reason=f"{type(error).__name__}: {error}", exc_info=trace)
        # What has tried to reach the store stays open: a backend may tell of an outage in words that we do not know.
        self._state_news = self._roster_news = True
        self._show(replace(self._view, fault=error))
        due = later(self._clock.now(), self._retry)
        self._retry = min(2 * self._retry, _LONGEST_RETRY)
        return due

    def _show(self, view: View) -> None:
        if view != self._view:
            if view.state is not None and view.state is not self._view.state and view.state.seated(self._key):
                self._seated_in = view.state.round
            self._view = view
            self._publish(view)

    # -- the state

    def _read(self) -> None:
        self._state_news = False
        self._take(self._ask(self._backend.get_state))

    def _take(self, found: tuple[bytes, Token] | None) -> None:
        """Take over what stands in the store. A store that knows less than we do has lost its memory (its host was
        started anew): it gets back what we know, from whoever is first."""
        if found is not None and found[1] == self._view.token and self._view.state is not None:
            return
        state = decoded_state(found[0]) if found is not None else State()
        known = self._view.state
        due = state if known is None else recovered(known, state)
        if due is not state:
            self._give_back(due, None if found is None else found[1])
            return
        if state == known and state.round:  # another write of the same: somebody gave it back
            self._view = replace(self._view, announced=None)
        self._roster_news = True
        self._deserted = bool(state.round) and not state.open and not state.closed and not state.survivors
        self._show(replace(self._view, state=state, token=None if found is None else found[1]))

    def _give_back(self, known: State, token: Token | None) -> None:
        get_logger().warning("store lost its state", round=known.round)
        self._returning_until = later(self._clock.now(), self._settings.window)
        self._view = replace(self._view, announced=None)
        self._put(known, token)

    def _write(self, state: State, token: Token | None) -> bool:
        return self._put(replace(state, serial=state.serial + 1), token)

    def _put(self, state: State, token: Token | None) -> bool:
        """Write the state in the place of the one whose token we hold: that token is what keeps a node that has slept
        from writing what it decided about a state of the past."""
        found = self._ask(lambda: self._backend.set_state(encoded_state(state), token))
        if found is None:
            self._read()
            return False
        data, token, written = found
        if written:
            self._roster_news = True
            self._show(replace(self._view, state=state, token=token))
        else:
            self._take((data, token))
        return written

    # -- what was asked for

    def _keep_entry(self) -> None:
        wanted = self._wanted
        if wanted is None or wanted == self._view.announced or self._outdated(wanted):
            return
        self._announce(wanted)

    def _restore_entry(self) -> None:
        """After an outage what stood there before stands there again first, also when the state cannot be read now."""
        stood = self._stood
        if self._wanted is None or self._view.announced is not None or stood is None:
            return
        if stood.after < self._seated_in and self._state_news:
            try:
                self._read()
            except RendezvousStateError:
                self._announce(stood)
                raise
        if not self._outdated(stood):
            self._announce(stood)

    def _outdated(self, entry: Entry) -> bool:
        """Whether the entry led to a round that is past: a node that slept while the others went on without it would
        look like one that waits for the next, and be given a seat before it knows."""
        state = self._view.state
        return state is not None and entry.after < self._seated_in < state.round

    def _announce(self, entry: Entry) -> None:
        self._older = self._ask(lambda: self._backend.announce(self._key, encoded_entry(entry)))
        if self._view.announced is None:
            self._next_beat = later(self._clock.now(), self._settings.keep_alive_interval)
        self._roster_news = True
        self._stood = entry
        self._show(replace(self._view, announced=entry))

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
            self._withdraw()
        else:
            self._amend(ticket, ticket.action)

    def _finish(self, ticket: Ticket) -> None:
        self._tickets.popleft()
        ticket.done.set()

    def _withdraw(self) -> None:
        if self._wanted is None:
            self._leading = False
            self._ask(lambda: self._backend.withdraw(self._key))
            self._stood = None
            self._show(replace(self._view, announced=None))

    def _amend(self, ticket: Ticket, action: Callable[[State], State]) -> None:
        for _ in range(_MOST_REFUSALS):
            state = self._view.state or State()
            try:
                changed = action(state)
            except Exception as error:
                ticket.fault = error
                raise
            if changed is state or self._write(changed, self._view.token):
                return
        raise RendezvousConnectionError(
            f"expected to write the rendezvous state within {_MOST_REFUSALS} attempts, found that others always did so "
            "first"
        )

    # -- beats

    def _beat(self, now: Instant) -> None:
        place = self._place()
        look = place.near or self._beats % 2 == 0
        pulse = self._ask(lambda: self._backend.beat(self._key, self._leading, look))
        self._beats += 1
        self._next_beat = later(now, self._settings.keep_alive_interval)
        self._roster_news = True  # beats are looked at once in an interval, also when nobody came or went
        if pulse is not None:
            self._feel(pulse, self._clock.now(), place)

    def _feel(self, value: int, now: Instant, place: Lead) -> None:
        """Who leads counts up the leaders' counter. When it stands still, the next in line steps in; when another
        counts too, one of two steps back."""
        if self._leading:
            if self._pulse.counted(value, now) and place.position > 0:
                self._leading = False
            return
        felt = self._pulse.felt(value, now, place)
        self._deserted = self._deserted or felt.doubtful
        if felt.silent:
            self._step_in(now, "the node that led is silent")

    def _fill_vacancy(self, now: Instant) -> None:
        if self._leading or self._view.announced is None:
            return
        if self._pulse.vacated(self._backend.vacant, now, self._place()):
            self._step_in(now, "the node that led is gone")

    def _step_in(self, now: Instant, reason: str) -> None:
        get_logger().info("leads now", reason=reason)
        self._presume_late(now)
        # Counted before anything is written: what we write may move the next in line up, and it must not find that
        # the leaders' counter stands still.
        self._pulse.restart(self._ask(lambda: self._backend.beat(self._key, leading=True, look=True)), now)
        self._leading = self._roster_news = True

    def _presume_late(self, now: Instant) -> None:
        """The first in line would lead if it lived: it is late, until it beats again. Those between it and us may be
        about to step in themselves, so that there is some doubt."""
        beats = {item.key: item.beats for item in self._ask(self._backend.roster) if item.beats is not None}
        state = self._view.state or State()
        line = [key for key in state.surviving_keys if key not in state.draining]
        line += [key for key in beats if key not in line]
        before = line[: line.index(self._key)] if self._key in line else []
        first, between = before[:1], before[1:]
        self._liveness = self._liveness.presumed_late({k: beats[k] for k in between if k in beats}, now, _DOUBTS)
        self._liveness = self._liveness.presumed_late({k: beats[k] for k in first if k in beats}, now)

    def _place(self) -> Lead:
        return lead(self._view.state or State(), self._key, self._older)

    def _recount(self) -> None:
        """All members of the last round have left and nobody leads by rank, or whoever leads is silent. Those who wait
        look once who is the oldest of them: many who were older may have left since."""
        state = self._view.state or State()
        keys = [item.key for item in self._ask(self._backend.roster)]
        older = keys[: keys.index(self._key)] if self._key in keys else keys
        self._older = sum(not state.seated(key) for key in older)
        self._deserted = False

    def _is_first(self) -> bool:
        """The first in line leads without waiting for silence."""
        if not self._leading and self._view.announced is not None and self._place().position == 0:
            self._leading = self._roster_news = True
        return self._leading

    # -- deciding

    def _see(self, now: Instant) -> None:
        """Look at the roster if there is news of it, and decide. A state is never decided about by a roster that was
        read before it: who announced itself in between would look as if it had not."""
        for _ in range(_MOST_REFUSALS):
            if self._roster_news or self._looks:
                self._roster_news = False
                self._observe(self._ask(self._backend.roster), now)
            if not self._decide(now):
                break
        while self._looks:
            self._looks.popleft().done.set()

    def _observe(self, announced: tuple[Announced, ...], now: Instant) -> None:
        beats = {item.key: item.beats for item in announced if item.beats is not None}
        self._liveness = self._liveness.observed(beats, now)
        self._first_seen = {item.key: self._first_seen.get(item.key, now) for item in announced}
        self._entries = {item.entry: self._decoded(item) for item in announced}
        self._roster = tuple(
            Seen(entry, self._liveness.late(item.key, now), self._first_seen[item.key])
            for item in announced
            if (entry := self._entries[item.entry]) is not None
        )

    def _decoded(self, announced: Announced) -> Entry | None:
        """The entry; None for one that cannot be read, whose node then cannot take part: one bad entry must not stop
        the others."""
        if announced.entry in self._entries:
            return self._entries[announced.entry]
        try:
            return decoded_entry(announced.entry)
        except RendezvousStateError as error:
            get_logger().warning("entry not readable", node=announced.key, reason=str(error))
            return None

    def _decide(self, now: Instant) -> bool:
        """One decision, carried out if this node leads. Whether there may be more to decide."""
        state = self._view.state or State()
        since = self._enough_since(state, now)
        decision = decide(self._roster, state, self._settings, now, since, self._returning_until)
        if isinstance(decision, Wait):
            self._decide_at = decision.until if self._leading else None
            shown = None if state.open else decision
            self._show(replace(self._view, gathering=shown, waiting=self._count_waiting(state)))
            return False
        if now < self._returning_until and _goes_without(state, decision.state, self._roster):
            self._decide_at = self._returning_until
            return False
        return self._leading and self._enact(decision)

    def _enact(self, decision: Write) -> bool:
        self._decide_at = None
        if self._write(decision.state, self._view.token):
            get_logger().debug("rendezvous state written", round=decision.state.round, reason=decision.reason)
        return True

    def _enough_since(self, state: State, now: Instant) -> Instant | None:
        """Since when enough nodes have been ready, as this node has seen it."""
        if not enough(self._roster, state, self._settings):
            self._enough = None
        elif self._enough is None or self._enough[0] != state.round:
            self._enough = (state.round, now)
        return None if self._enough is None else self._enough[1]

    def _count_waiting(self, state: State) -> int:
        room = self._settings.max_nodes - state.survivors if state.open else self._settings.max_nodes
        return min(len(waiting(self._roster, state)), max(room, 0))


def _goes_without(before: State, after: State, roster: Roster) -> bool:
    """Whether a round forms without a member of the last one that has no entry."""
    if before.open or not after.open:
        return False
    known = {seat.key for seat in after.seats} | {seen.entry.key for seen in roster}
    return any(seat.key not in known for seat in before.surviving)

"""Which worlds are equivalent, that is, have the same possible futures.

A world is reduced to a number, the hash of its contents without anything that only shows how it came about: instants
become ages, or ticks until something is due, limited to what any rule distinguishes; tokens are current or outdated;
heartbeat counters are reduced to whether they have moved. Texts are left out. Worlds that differ by a fraction of a
second are treated as equivalent, and only one of them is explored.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from small_world import RUNS, SLACK, Actor

from elastic_core.rendezvous.effects import Announce, ChangeState, Heartbeat, ReadRoster, Retire, WriteState
from elastic_core.rendezvous.model import Entry, State
from elastic_core.rendezvous.policy import Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from small_world import Rules, World

    from elastic_core.rendezvous.effects import Operation

    Plan = tuple[Callable[[dict[str, Any]], Any], list[tuple[str, Callable[[Any, "View"], Any]]]]

_MOST_KEPT = 100_000
_FAR = 99
_OUT = (
    *("key", "settings", "gathering", "_settled", "_notes", "_beats", "_reports", "told", "formed", "registrations"),
    *("interval", "attempts"),
)
_DUE = (
    *("_beat_at", "_decide_at", "_requests_at", "retry_at", "extended", "barred_until", "join_by", "contact_by"),
    "Observation.settled",
)


class View(NamedTuple):
    """The viewpoint of one node: its clock, and the contents of the store."""

    now: float
    store: Any
    serial: int


class Sameness:
    """Maps worlds to numbers. Values that many worlds share are numbered once."""

    def __init__(self, rules: Rules) -> None:
        self._window = rules.failure_timeout
        self._bound = rules.bound
        self._far = 2 * rules.failure_timeout + 1
        self._twins = len(set(rules.nodes)) < len(rules.nodes) or "crashes" in rules.events
        self._serials = "the store forgets" in rules.events
        self._attempts = rules.settings.keep_alive_max_attempt
        self._numbers: dict[Any, int] = {}
        self._kept: dict[int, tuple[object, int]] = {}
        self._parts: dict[Any, tuple[int, object, object]] = {}
        self._plans: dict[type, Plan] = {}

    def __call__(self, world: World) -> int:
        """Returns the number of the world."""
        if len(self._kept) > _MOST_KEPT:
            self._kept.clear()
        if len(self._parts) > _MOST_KEPT:
            self._parts.clear()
        store = world.store
        serial = store.state.serial if store.state and self._serials else 0
        rows = tuple([(key, self._number(row.entry)) for key, row in store.rows])
        actors = tuple([self._actor(world, actor, serial) for actor in world.actors])
        last = dict(store.last)
        late = [(self._operation(o, View(0, store, serial)), n > last.get(by, -1), by) for o, n, by in world.late]
        rest = (world.turn, world.to_come, world.to_restart, world.asleep, world.forgot)
        return hash((self._state(store.state, serial), rows, actors, tuple(late), rest))

    def _actor(self, world: World, actor: Actor, serial: int) -> Any:
        heard = min(world.now - actor.heard, 3 * self._window + 1)
        if actor.machine is None:
            return actor.key, actor.phase, heard, actor.reported_done
        store, now = world.store, world.now + actor.behind
        news = actor.heard_writes != store.writes and actor.machine.token != store.token
        rosters = actor.heard_rosters != store.rosters
        due = math.ceil(min(max(actor.due - world.now - SLACK, 0), _FAR))
        flags = (actor.frozen, actor.cut_off, actor.foreign_state, news, rosters, isinstance(actor.goodbye, Retire))
        stops = max(actor.stops_by - world.now, 0)
        young = min(world.now - actor.since, 3 * self._window) if self._dead(world) else 0
        own = (actor.key, actor.phase, actor.works_in, actor.number, due, stops, heard, actor.reported_done, young)
        view = View(now, store, serial)
        reached = min(world.now - actor.reached, self._bound) if actor.phase == RUNS else None
        return (
            own,
            (reached, world.now == actor.back),
            flags,
            self._answer(actor, view),
            self._plain(actor.machine, view),
        )

    def _dead(self, world: World) -> bool:
        """Whether the store has an entry of a node that has ended."""
        return any(a.machine is None and world.store.beats(a.key) is not None for a in world.actors)

    # -- values that worlds share

    def _number(self, value: Entry | State) -> int:
        """The number of an entry or a state. Values that differ only in their reasons have the same number."""
        known = self._kept.get(id(value))
        if known is None:
            plain = _of_state(value) if isinstance(value, State) else _of_entry(value)
            known = value, self._numbers.setdefault(plain, len(self._numbers))
            self._kept[id(value)] = known
        return known[1]

    def _state(self, state: State | None, serial: int) -> Any:
        if state is None:
            return None
        # Doubled, because -1 and -2 have the same hash in Python.
        return (self._number(state), 2 * (state.serial - serial)) if self._serials else self._number(state)

    def _entry(self, entry: Entry | None, view: View) -> Any:
        return None if entry is None else self._number(entry)

    def _token(self, token: Any, view: View) -> Any:
        return None if token is None else token == view.store.token

    def _given(self, given: Any, view: View) -> Any:
        return given and (self._state(given[0], view.serial), self._token(given[1], view))

    def _operation(self, operation: Operation | None, view: View) -> Any:
        if isinstance(operation, WriteState):
            return self._state(operation.state, view.serial), self._token(operation.token, view)
        if isinstance(operation, Announce):
            return "announce", self._number(operation.entry)
        if isinstance(operation, Heartbeat):
            return "beat", operation.leading, operation.look
        return operation and (type(operation).__name__, getattr(operation, "key", ""))

    def _answer(self, actor: Actor, view: View) -> Any:
        """An answer on its way, reduced to the parts that the node can distinguish."""
        if actor.answer is None or actor.machine is None:
            return None
        answer, store = actor.answer[0], view.store
        if isinstance(answer, tuple) and isinstance(actor.asked, ReadRoster):
            counters = actor.machine.seen.counters
            known = {key: counter.value for key, counter in counters.items()}
            return tuple(
                (self._entry(r.entry, view), self._moved(r.beats, store.beats(r.key), known.get(r.key))) for r in answer
            )
        if isinstance(answer, tuple):  # a state
            return self._state(answer[0], view.serial), self._token(answer[1], view), answer[2:]
        if isinstance(answer, int) and isinstance(actor.asked, Heartbeat):
            counter = actor.machine.election.counter
            return self._moved(answer, store.lead, counter and counter.value)
        return type(answer).__name__ if isinstance(answer, Exception) else answer

    def _moved(self, value: Any, stored: int | None, known: Any) -> Any:
        """How a counter compares with the stored one, and with the one that the node knows."""
        return value != stored, value != known if None in (value, known) else min(value - known, 2)

    def _request(self, request: Any) -> Any:
        if not isinstance(request, ChangeState):
            return type(request).__name__
        first = request.arguments[:1] + tuple(getattr(a, "certain", None) for a in request.arguments)
        return request.change.__name__, str(first)

    # -- one node

    def _plain(self, value: Any, view: View) -> Any:
        """An object that never changes, reduced attribute by attribute. Most steps change few of a world's objects."""
        if value is None:
            return None
        place = id(value), view.now, id(view.store), view.serial
        part = self._parts.get(place)
        if part is None:
            known = vars(value)
            plain, treats = self._plan_of(value, known)
            reduced = hash((plain(known), *[treat(known[name], view) for name, treat in treats]))
            part = self._parts[place] = reduced, value, view.store  # keeps both, so that their ids stay theirs
        return part[0]

    def _plan_of(self, value: object, known: dict[str, Any]) -> Plan:
        """A function that returns the attributes that are compared as they are, and how to treat the rest."""
        plan = self._plans.get(type(value))
        if plan is None:
            kind = type(value).__mro__[-2].__name__  # a planted defect may derive from it
            special = self._special()
            treats = {name: special.get(name, special.get(f"{kind}.{name}")) for name in known}
            plain = [name for name, treat in treats.items() if treat is None]
            treated = [(name, treat) for name, treat in treats.items() if treat not in (None, _left_out)]
            plan = self._plans[type(value)] = (itemgetter(*plain) if plain else lambda known: ()), treated
        return plan

    def _special(self) -> dict[str, Callable[[Any, View], Any]]:
        """How attributes are reduced that are not compared as they are."""
        out = dict.fromkeys(_OUT, _left_out)
        due = dict.fromkeys(_DUE, _due)
        ages = dict.fromkeys(("since", "vacant_since", "away_at"), self._age)
        return {
            **out,
            **due,
            **ages,
            "state": lambda state, view: self._state(state, view.serial),
            "token": self._token,
            "_to_give_back": self._given,
            "entry": self._entry,
            "registered": self._entry,
            "_stored_before": self._entry,
            "_enough": lambda enough, view: enough and (enough[0], self._age(enough[1], view)),
            "_decision": self._decision,
            "_requests": lambda requests, view: tuple([self._request(request) for request in requests]),
            "_looks": _count,
            "_looking": _count,
            "_asked": self._operation,
            "fault": _kind,
            "outage": _kind,
            "failures": lambda count, view: min(count, 3),
            "seen": self._plain,
            "election": self._plain,
            "membership": self._plain,
            "connection": self._plain,
            "Connection.asked": self._age,
            "Connection.renewed": self._age,
            "Connection.belated": self._age,
            "counters": self._counters,
            "counter": lambda counter, view: counter and self._counter(counter, view.store.lead, view),
            "roster": self._roster,
            "absent": lambda absent, view: tuple(sorted(absent)),
        }

    def _age(self, instant: float | None, view: View) -> Any:
        """In half ticks, limited to the oldest age that any rule distinguishes."""
        return None if instant is None else min(round(2 * (view.now - instant)), 2 * self._far)

    def _decision(self, decision: Any, view: View) -> Any:
        return self._state(decision.state, view.serial) if isinstance(decision, Write) else None

    def _counters(self, counters: Any, view: View) -> Any:
        beats = {key: row.beats for key, row in view.store.rows}
        return tuple([(key, self._counter(counter, beats.get(key, -1), view)) for key, counter in counters.items()])

    def _counter(self, counter: Any, value: int, view: View) -> Any:
        looked = counter.since if counter.looked is None else counter.looked
        moved = max(counter.value - value, -1)
        again = view.now - looked >= 0.5
        return moved, self._age(counter.since, view), min(counter.unchanged, self._attempts), again

    def _roster(self, roster: Any, view: View) -> Any:
        if self._twins:
            return tuple([(self._number(s.entry), s.late, self._age(s.since, view)) for s in roster])
        return tuple([(self._number(s.entry), s.late) for s in roster])


def _left_out(value: Any, view: View) -> Any:
    raise NotImplementedError


def _count(value: Any, view: View) -> Any:
    return len(value)


def _kind(error: Any, view: View) -> Any:
    return None if error is None else type(error).__name__


def _due(instant: float | None, view: View) -> Any:
    """Ticks until then."""
    return None if instant is None else math.ceil(min(max(instant - view.now - SLACK, 0), _FAR))


def _of_entry(entry: Entry) -> Any:
    told = entry.reported
    failed = told and (told.round, told.failure and told.failure.certain, told.leaves, told.ended)
    return entry.key, entry.after, entry.waits, entry.done, failed, entry.unreachable


def _of_state(state: State) -> Any:
    end = state.end and (
        state.end.cause,
        state.end.counted,
        tuple((report.key, report.certain) for report in state.end.reports),
    )
    return (
        (state.round, state.open, state.seats.text, end, state.restarts, state.max_restarts),
        state.stopped,
        (tuple(sorted(state.gone)), tuple(sorted(state.done)), tuple(sorted(state.draining))),
        (state.closed and state.closed.succeeded, tuple(k for k, _ in state.refused)),
    )

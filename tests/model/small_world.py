"""A small world in which the explorer can try everything that may happen to a few nodes.

A world is a value: the nodes, the contents of the store, and pending operations. Nodes decide with the production
`Node`, over a `StoreModel`; agents are a few lines here. Steps happen by themselves: a node requests an operation, the
store carries it out, time passes. Events are faults, and actions of users; a search has a limit on their number.

- Time passes in ticks of one heartbeat interval, and only when no node has anything to do. Nodes are fast: work that is
  due shortly after a tick (a second attempt) is done in that tick. A slow node is `frozen`.
- A node that has begun to work continues until it rests, unless an event interrupts it. Nodes begin in any order.
- Operations are carried out one at a time. Nodes that are not frozen get the store's notifications immediately.
- Workers take any time to stop, up to the node's `stop_timeout`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_testing.store_model import StoreModel
from must_hold import check_rest, check_write, must

from elastic_core.clock import Instant
from elastic_core.errors import ElasticError, ProcessFailure, RendezvousConnectionError, RendezvousStateError
from elastic_core.interfaces import node as described
from elastic_core.interfaces.handler import Outcome, RendezvousStoreInfo
from elastic_core.rendezvous import model
from elastic_core.rendezvous.effects import Announce, Heartbeat, Idle, Retire, Withdraw, WriteState
from elastic_core.rendezvous.model import NO_ROUND, Entry, RoundId, State
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elastic_core.rendezvous.effects import Operation, Request

# Phases of a node.
WANTS, RUNS, DONE, STOPS, GOES, GONE, CRASHED = range(7)
PHASES = ("wants a round", "runs", "has succeeded", "stops its workers", "goes", "is gone", "has crashed")

SLACK = 0.25  # seconds after a tick; work that is due within them is done in that tick
NOT_HEARD = -99
FAR = 1e9
NOBODY = -1
MOST_STEPS = 60  # steps of one node in one tick; a node that needs more is in a busy loop
FAILURE = {0: ProcessFailure(0, 1, -9, reason="killed by SIGKILL")}
EVENTS = (
    "crashes",
    "freezes",
    "is cut off",
    "is cut off at work",
    "is interrupted",
    "fails",
    "fails, uncertain",
    "succeeds",
    "leaves",
    "is drained",
    "loses an answer",
    "waits for its answer",
    "is late",
    "cannot write",
    "is dropped",
    "the store sleeps",
    "the store forgets",
)


class Actor(NamedTuple):
    """A node and its minimal agent.

    Args:
        key: the key of its entry; its name is the part before the slash.
        machine: its `Node`, which is copied before each change; None once it has ended.
        works_in: the round whose workers run here.
        number: the round that it runs or ran last.
        asked: the pending operation.
        answer: what the store has answered to it, if the answer is still on its way: a tuple with the result or error.
        due: when it acts again without news.
        behind: seconds by which its clock is ahead of the tick.
        heard_writes, heard_rosters: how many of the store's notifications it has received.
        stops_by: the tick by which its workers have stopped.
        goodbye: the request that must be settled before it leaves.
        heard: the tick of its last operation that proved to the store that it lives.
        reached: the tick of the last such operation before its round ended, or of the last interval that it got because
            it was frozen. From then on, its fencing bound counts.
        back: the tick at which it was heard again after a failure timeout.
        since: the tick at which it started.
        reported_done: the round whose success it has reported.
        operations: the number of its operations so far.
        frozen: whether it is suspended.
        cut_off: whether it cannot reach the store.
        foreign_state: whether the store refuses its writes.
    """

    key: str
    machine: Node | None
    phase: int = WANTS
    works_in: RoundId = NO_ROUND
    number: RoundId = NO_ROUND
    asked: Operation | None = None
    answer: tuple[Any] | None = None
    due: float = 0.0
    behind: float = 0.0
    heard_writes: int = -1
    heard_rosters: int = -1
    stops_by: int = 0
    goodbye: Request | None = None
    heard: int = NOT_HEARD
    reached: int = NOT_HEARD
    back: int = NOT_HEARD
    since: int = 0
    reported_done: RoundId = NO_ROUND
    operations: int = 0
    frozen: bool = False
    cut_off: bool = False
    foreign_state: bool = False

    @property
    def name(self) -> str:
        return self.key.partition("/")[0]

    @property
    def acts(self) -> bool:
        """Whether its process runs."""
        return self.machine is not None and not self.frozen

    @property
    def waits(self) -> bool:
        """Whether the answer to its operation is still on its way."""
        return self.answer is not None and not self.cut_off


class World(NamedTuple):
    """The whole world.

    Args:
        now: the tick.
        turn: the actor that has begun to work and does not rest yet; NOBODY if all rest or were interrupted.
        late: writes that were given up and may still be carried out, with their numbers and their nodes.
        to_come: keys of the nodes that may still join.
        to_restart: keys of crashed nodes that may be restarted.
        asleep: whether the store answers no operation.
        forgot: whether the store has lost its data.
    """

    store: StoreModel
    actors: tuple[Actor, ...] = ()
    now: int = 0
    turn: int = NOBODY
    late: tuple[tuple[Operation, int, str], ...] = ()
    to_come: tuple[str, ...] = ()
    to_restart: tuple[str, ...] = ()
    asleep: bool = False
    forgot: bool = False

    @property
    def state(self) -> State:
        return self.store.state or State()


Steps = "Iterator[tuple[str, Callable[[], World]]]"


class Rules:
    """How worlds follow from worlds.

    Args:
        nodes: a letter for each node that may join; a repeated letter is a second agent of that name.
        events: which of EVENTS may happen.
        leases: whether the store itself drops the entries of silent nodes.
        stops: seconds that the workers of these nodes may take to stop.
        make: creates a node; differs from `Node` only to plant a fault.
        fenced: see `StoreModel`.
        attempts: heartbeats that may be missing.
        lifelines: whether members notice a crash of their neighbor, at any later time.
    """

    def __init__(
        self,
        min_nodes: int,
        max_nodes: int,
        nodes: str = "ab",
        events: Collection[str] = EVENTS,
        *,
        leases: bool = False,
        stops: dict[str, int] | None = None,
        make: Callable[[Entry, RendezvousSettings], Node] = Node,
        fenced: bool = True,
        attempts: int = 3,
        max_restarts: int = 1,
        grace: float = 0.0,
        lifelines: bool = False,
    ) -> None:
        timeout = RendezvousTimeout(join=1e9, last_call=1.0, close=2.0)
        lease = float(attempts) if leases else None
        self.settings = RendezvousSettings("job", min_nodes, max_nodes, timeout, 1.0, attempts, lease)
        self.failure_timeout = int(self.settings.failure_timeout)
        self.bound = self.failure_timeout + grace  # the fencing bound
        self.nodes = nodes
        self.events = frozenset(events)
        self.stops = stops or {}
        self.max_restarts = max_restarts
        self.grace = grace
        self.lifelines = lifelines
        self._make = make
        self._store = StoreModel(leases=leases, fenced=fenced)

    # -- initial worlds

    def empty(self) -> World:
        """A job that no node has joined."""
        keys = tuple(f"{name}/{1 + self.nodes[:place].count(name)}" for place, name in enumerate(self.nodes))
        return World(self._store, to_come=keys)

    def running(self, first: int) -> World:
        """A job in which the first nodes run their first round and nothing is pending; the rest may still join."""
        world = self.empty()
        for _ in range(first):
            world = self._come(world, world.to_come[0])
        for _ in range(4 * self.failure_timeout):
            world = self.quiet(world)
        must(len(world.state.busy) == first and world.state.open, "a job whose nodes just come does not form a round")
        return world

    def after(self, world: World, *names: str) -> World:
        """The world after these steps and events."""
        free = copy.copy(self)
        free.events = frozenset(EVENTS)
        for name in names:
            world = dict([*free.steps(world), *free.happenings(world)])[name]()
        return world

    # -- steps

    def steps(self, world: World) -> Steps:
        """All possible steps, each with a function that returns the next world."""
        for key in world.to_come if world.turn == NOBODY else ():
            yield f"{key} comes", partial(self._come, world, key)
        for place, (operation, _, owner) in enumerate(world.late):
            yield f"{brief(operation)} of {owner} is carried out late", partial(self._carried_out_late, world, place)
        if world.asleep:
            yield "the store wakes", partial(self._woken, world)
        for place, actor in enumerate(world.actors):
            if world.turn in (NOBODY, place):
                yield from self._steps_of(world, place, actor)
        if not self.busy(world):
            yield "time passes", partial(self.later, world)

    def _steps_of(self, world: World, place: int, actor: Actor) -> Steps:
        if actor.frozen:
            yield f"{actor.key} continues", partial(_with, world, place, self._continues(world, actor))
        if actor.acts and actor.waits and world.turn == NOBODY:
            yield f"{actor.key} gets its answer", partial(self._answered, world, place)
        if actor.cut_off and world.turn == NOBODY:
            yield f"{actor.key} reaches the store again", partial(_with, world, place, actor._replace(cut_off=False))
        if actor.foreign_state and world.turn == NOBODY:
            yield (
                f"what {actor.key} writes is taken again",
                partial(_with, world, place, actor._replace(foreign_state=False)),
            )
        if self.lifelines and actor.acts and world.turn == NOBODY:
            yield from self._seen_to_end(world, place, actor)
        if actor.phase == CRASHED and actor.key in world.to_restart:
            yield f"{actor.name} is started again", partial(self._restarted, world, actor)
        if self.may_act(world, actor):
            yield self.what_it_does(world, place), partial(self.act, world, place)
        if actor.acts and actor.works_in and world.now < actor.stops_by and actor.phase in (STOPS, GOES):
            yield f"the workers of {actor.key} have stopped", partial(self._stopped, world, place)

    def _seen_to_end(self, world: World, place: int, actor: Actor) -> Steps:
        assert actor.machine is not None
        seat, _ = actor.machine.neighbour or (None, None)
        known = seat is None or seat.key in actor.machine.seen.ended
        if seat is not None and not known and any(a.key == seat.key and a.phase == CRASHED for a in world.actors):

            def tell(world: World, actor: Actor, machine: Node) -> Actor:
                machine.lost(seat.key)
                return actor

            yield f"{actor.key} sees that {seat.key} has ended", partial(self._order, world, place, tell)

    def may_act(self, world: World, actor: Actor) -> bool:
        """Whether the node has anything to do now."""
        if not actor.acts:
            return False
        if actor.asked is not None:
            return not (world.asleep or actor.waits) or self._agent_due(world, actor)
        return actor.due <= world.now + SLACK or self._has_news(world, actor) or self._agent_due(world, actor)

    def _agent_due(self, world: World, actor: Actor) -> bool:
        if actor.phase in (STOPS, GOES):
            told = isinstance(actor.goodbye, Retire)
            return actor.stops_by <= world.now and (bool(actor.works_in) or actor.phase == STOPS or not told)
        return self._fence(world, actor) <= world.now + SLACK

    def _fence(self, world: World, actor: Actor) -> float:
        """When the agent must stop its workers, unless the store answers first."""
        machine, now = actor.machine, Instant(world.now + actor.behind)
        assert machine is not None
        return machine.connection.fence_at(self.grace, now) if actor.phase in (RUNS, DONE) else FAR

    def _has_news(self, world: World, actor: Actor) -> bool:
        machine, store = actor.machine, world.store
        if machine is None or actor.cut_off or world.asleep:
            return False
        if actor.heard_writes != store.writes and machine.token != store.token:
            return True
        return machine.wants_roster and actor.heard_rosters != store.rosters

    def busy(self, world: World) -> bool:
        """Whether any node has something to do before time passes."""
        return world.turn != NOBODY or any(self.may_act(world, actor) for actor in world.actors)

    def later(self, world: World) -> World:
        """The world one tick later, when no node has anything left to do."""
        check_rest(self, world)
        now, store, window = world.now + 1, world.store, self.failure_timeout
        if store.leases and not world.asleep:
            for actor in world.actors:
                if now - actor.heard >= window:
                    store = store.dropped(actor.key)
        actors = tuple(actor._replace(behind=0.0) if actor.behind else actor for actor in world.actors)
        return world._replace(now=now, store=store, actors=actors)

    def _come(self, world: World, key: str) -> World:
        left = tuple(other for other in world.to_come if other != key)
        return world._replace(actors=(*world.actors, self._started(key, world.now)), to_come=left)

    def _restarted(self, world: World, crashed: Actor) -> World:
        left = tuple(other for other in world.to_restart if other != crashed.key)
        made = self._started(f"{crashed.name}/9", world.now)
        return world._replace(actors=(*world.actors, made), to_restart=left)

    def _started(self, key: str, now: int) -> Actor:
        name = key.partition("/")[0]
        stops = float(self.stops.get(name, 0))
        node = described.Node(name, host=name, max_restarts=self.max_restarts, stop_timeout=stops)
        machine = self._make(Entry.of(node, key), self.settings)
        _join(machine, name, Instant(now))
        return Actor(key, machine, due=now, since=now)

    # -- one node

    def what_it_does(self, world: World, place: int) -> str:
        """Describes the node's next step."""
        actor = world.actors[place]
        looks = actor.asked is None or world.asleep or actor.waits
        return f"{actor.key}: {'looks' if looks or actor.asked is None else brief(actor.asked)}"

    def act(self, world: World, place: int) -> World:
        """Carry out the pending operation; then the node requests the next one, or rests."""
        actor = world.actors[place]
        if actor.asked is None or world.asleep or actor.waits:
            return self._looks(world, place)
        return self.carried_out(world, place)

    def _looks(self, world: World, place: int) -> World:
        actor = world.actors[place]
        assert actor.machine is not None
        due = (time - world.now for time in (actor.due, self._fence(world, actor)))
        behind = max(actor.behind, *(time for time in due if time <= SLACK), 0.0)
        return self._continue(world, place, actor._replace(behind=behind), copy.copy(actor.machine))

    def carried_out(self, world: World, place: int, answered: bool = True) -> World:
        """Carry out the pending operation. The node gets the answer, or an error if `answered` is false."""
        world, answer = self._asked(world, place)
        given = answer if answered else RendezvousConnectionError("lost")
        return self._answered(_with(world, place, world.actors[place]._replace(answer=(given,))), place)

    def _slow(self, world: World, place: int) -> World:
        """Carry out the pending operation. The node gets the answer later."""
        world, answer = self._asked(world, place)
        return _with(world, place, world.actors[place]._replace(answer=(answer,)))._replace(turn=NOBODY)

    def _asked(self, world: World, place: int) -> tuple[World, object]:
        """Carry out the pending operation. Returns the world after it, and the result or the error."""
        actor = world.actors[place]
        operation, number = actor.asked, actor.operations + 1
        assert operation is not None
        world = _with(world, place, actor._replace(operations=number))
        try:
            if actor.cut_off:
                raise RendezvousConnectionError("cut off")
            if actor.foreign_state and isinstance(operation, WriteState):
                raise RendezvousStateError("what this node writes is refused")
            return self._performed(world, operation, number, place)
        except ElasticError as error:
            return world, error

    def _answered(self, world: World, place: int) -> World:
        """The node gets the answer to its operation."""
        actor = world.actors[place]
        machine, now = copy.copy(actor.machine), Instant(world.now + actor.behind)
        assert machine is not None
        assert actor.answer is not None
        answer = actor.answer[0]
        if isinstance(answer, ElasticError):
            machine.broke(answer, now)
        else:
            machine.answered(answer, now)
        return self._continue(world, place, actor._replace(asked=None, answer=None), machine)

    def _continues(self, world: World, actor: Actor) -> Actor:
        """The actor after it was frozen. It has one tick to reach the store."""
        reached = max(actor.reached, world.now - self.bound + 1)
        return actor._replace(frozen=False, due=world.now, reached=reached)

    def given_up(self, world: World, place: int) -> World:
        """Give up the pending operation, which may still be carried out later."""
        actor = world.actors[place]
        machine = copy.copy(actor.machine)
        assert machine is not None
        assert actor.asked is not None
        number = actor.operations + 1
        late = (*world.late, (actor.asked, number, actor.key))
        machine.broke(RendezvousConnectionError("given up"), Instant(world.now + actor.behind))
        actor = actor._replace(asked=None, operations=number)
        return self._continue(_with(world, place, actor)._replace(late=late), place, actor, machine)

    def _continue(self, world: World, place: int, actor: Actor, machine: Node) -> World:
        """The agent acts; then the node requests an operation, or rests."""
        for _ in range(MOST_STEPS):
            now = Instant(world.now + actor.behind)
            if not (actor.cut_off or world.asleep):
                actor = _told(world, actor, machine)
            actor = self._follow(world, actor, machine, now)
            if actor.machine is None:
                return _with(world, place, actor)._replace(turn=NOBODY)
            if actor.asked is not None:
                return _with(world, place, actor._replace(machine=machine))
            step = machine.next(now)
            machine.pop_log_lines()
            if isinstance(step, Idle):
                if actor.cut_off and step.until <= world.now + SLACK:
                    actor = actor._replace(behind=max(step.until - world.now, actor.behind))
                    continue
                actor = actor._replace(machine=machine, due=step.until)
                return _with(world, place, actor)._replace(turn=NOBODY)
            if not actor.cut_off:
                turn = NOBODY if world.asleep else place
                return _with(world, place, actor._replace(machine=machine, asked=step))._replace(turn=turn)
            machine.broke(RendezvousConnectionError("cut off"), now)
        must(holds=False, what=f"{actor.key} keeps itself busy")
        return world

    def _follow(self, world: World, actor: Actor, machine: Node, now: Instant) -> Actor:
        """Let the agent react to its node."""
        settled = machine.pop_settled()
        if actor.phase == WANTS:
            member = machine.membership
            if member.running:
                return actor._replace(phase=RUNS, works_in=member.round, number=member.round)
            obstacle = machine.obstacle(now)
            passes = obstacle is machine.fault or isinstance(obstacle, RendezvousConnectionError)
            if obstacle is not None and not passes:
                machine.step_back()
                return self._goes(world, actor, machine)
        elif actor.phase in (RUNS, DONE):
            actor = self._heed(world, actor, machine, now)
        if actor.phase == STOPS and actor.stops_by <= world.now:
            _join(machine, actor.name, now)
            return actor._replace(phase=WANTS, works_in=NO_ROUND)
        if actor.phase == GOES and actor.stops_by <= world.now:
            if not isinstance(actor.goodbye, Retire):
                return actor._replace(works_in=NO_ROUND, goodbye=machine.retire("it ends"))
            told = any(request is actor.goodbye for request, _ in settled)
            if told or (machine.connection.outage is not None and world.now > actor.stops_by):
                return _gone(actor, GONE)
        return actor

    def _heed(self, world: World, actor: Actor, machine: Node, now: Instant) -> Actor:
        found = machine.verdict(now, self.grace)
        if found is None:
            return actor
        ends = actor.phase == DONE and found.outcome is Outcome.FENCED
        if ends or found.outcome not in (Outcome.RESTART, Outcome.FENCED):
            return self._goes(world, actor, machine)
        return self._stops(world, actor, STOPS)

    def _goes(self, world: World, actor: Actor, machine: Node) -> Actor:
        goodbye = machine.leave("it ends")
        return self._stops(world, actor, GOES)._replace(goodbye=goodbye)

    def _stops(self, world: World, actor: Actor, phase: int) -> Actor:
        """Start to stop its workers, if it has any."""
        takes = self.stops.get(actor.name, 0) if actor.works_in else 0
        by = actor.stops_by if actor.phase in (STOPS, GOES) else world.now + takes
        return actor._replace(phase=phase, stops_by=by, works_in=actor.works_in if takes else NO_ROUND)

    def _stopped(self, world: World, place: int) -> World:
        return _with(world, place, world.actors[place]._replace(stops_by=world.now, due=world.now))

    # -- the store

    def _carried_out_late(self, world: World, place: int) -> World:
        operation, number, owner = world.late[place]
        left = (*world.late[:place], *world.late[place + 1 :])
        writer = next((place for place, actor in enumerate(world.actors) if actor.key == owner), NOBODY)
        return self._performed(world._replace(late=left), operation, number, writer)[0]

    def _performed(self, world: World, operation: Operation, number: int, place: int = NOBODY) -> tuple[World, object]:
        """Carry out an operation of the actor at `place`, which may no longer wait for it. Returns the world after it,
        and the answer."""
        before = world.store.state
        store, answer = world.store.performed(operation, number)
        after = world._replace(store=store)
        if isinstance(operation, (Announce, Heartbeat)) and store is not world.store:
            entry = operation.entry if isinstance(operation, Announce) else None
            key, done = (entry.key, entry.done) if entry else (operation.key, NO_ROUND)
            heard = (_heard(a, world, done, self.failure_timeout) if a.key == key else a for a in world.actors)
            after = after._replace(actors=tuple(heard))
        if store.state is not before and store.state is not None:
            writer = world.actors[place] if place != NOBODY else None
            check_write(self, world, before or State(), store.state, writer)
        return after, answer

    def _woken(self, world: World) -> World:
        """The waiting operations of all reachable nodes prove that they live."""
        actors = tuple(
            a._replace(heard=world.now) if a.acts and not a.cut_off and a.heard != NOT_HEARD else a
            for a in world.actors
        )
        return world._replace(asleep=False, actors=actors)

    # -- events

    def happenings(self, world: World) -> Steps:
        """All possible events, each with a function that returns the next world."""
        if "the store sleeps" in self.events and not world.asleep and world.turn == NOBODY:
            yield "the store sleeps", partial(world._replace, asleep=True)
        if "the store forgets" in self.events and not world.asleep and world.store.state is not None:
            yield "the store forgets", partial(self._forgotten, world)
        for place, actor in enumerate(world.actors):
            if actor.machine is not None and world.turn in (NOBODY, place):
                for what, after in self._happens_to(world, place, actor):
                    if what in self.events:
                        yield f"{actor.key} {what}", after

    def _happens_to(self, world: World, place: int, actor: Actor) -> Steps:
        yield "crashes", partial(self._crashed, world, place)
        if not actor.cut_off:
            when = " at work" if world.turn == place else ""
            cut_off = _with(world, place, actor._replace(cut_off=True))
            yield f"is cut off{when}", partial(cut_off._replace, turn=NOBODY)
        if world.turn == NOBODY:
            yield from self._troubles(world, place, actor)
        if actor.frozen:
            return
        yield "freezes", lambda: _with(world, place, actor._replace(frozen=True))._replace(turn=NOBODY)
        if actor.asked is not None and not (world.asleep or actor.cut_off or actor.waits):
            if world.turn == place:
                yield "is interrupted", partial(world._replace, turn=NOBODY)
            yield "loses an answer", partial(self.carried_out, world, place, answered=False)
            yield "waits for its answer", partial(self._slow, world, place)
            if isinstance(actor.asked, (WriteState, Announce, Withdraw)):
                yield "is late", partial(self.given_up, world, place)
        if actor.phase in (WANTS, RUNS, DONE, STOPS):
            yield "leaves", partial(self._order, world, place, self._goes)
        if actor.phase == RUNS and actor.asked is None:
            yield "fails", partial(self._order, world, place, self._fails)
            yield "fails, uncertain", partial(self._order, world, place, self._fails_uncertain)
            yield "succeeds", partial(self._order, world, place, _succeeds)

    def _troubles(self, world: World, place: int, actor: Actor) -> Steps:
        if not actor.foreign_state:
            yield "cannot write", partial(_with, world, place, actor._replace(foreign_state=True))
        if world.asleep:
            return
        drained = model.drained(world.state, actor.key)
        if drained is not world.state and actor.phase != GOES:
            written = WriteState(replace(drained, serial=world.state.serial + 1), world.store.token)
            yield "is drained", lambda: self._performed(world, written, 0)[0]
        if world.store.leases and world.store.beats(actor.key) is not None:
            yield "is dropped", partial(self._dropped, world, place)

    def _crashed(self, world: World, place: int) -> World:
        actor = world.actors[place]
        restarts = () if actor.key.endswith("/9") else (actor.key,)
        return _with(world, place, _gone(actor, CRASHED))._replace(
            turn=NOBODY, to_restart=(*world.to_restart, *restarts)
        )

    def _dropped(self, world: World, place: int) -> World:
        """The store forgets that it has heard from the node."""
        actor = world.actors[place]
        denied = _with(world, place, actor._replace(heard=NOT_HEARD))
        return denied._replace(store=world.store.dropped(actor.key))

    def _forgotten(self, world: World) -> World:
        actors = tuple(actor._replace(heard=NOT_HEARD) for actor in world.actors)
        return world._replace(store=world.store.forgotten(), actors=actors, forgot=True)

    def _order(self, world: World, place: int, order: Callable[[World, Actor, Node], Actor]) -> World:
        actor = world.actors[place]
        machine = copy.copy(actor.machine)
        assert machine is not None
        after = order(world, actor, machine)
        return _with(world, place, after._replace(machine=machine, due=min(after.due, world.now)))

    def _fails(self, world: World, actor: Actor, machine: Node) -> Actor:
        machine.fail(FAILURE)
        return self._stops(world, actor, STOPS)

    def _fails_uncertain(self, world: World, actor: Actor, machine: Node) -> Actor:
        machine.fail({})
        return self._stops(world, actor, STOPS)

    # -- a world without events

    def healed(self, world: World) -> World:
        """End all faults: frozen, cut-off and waiting nodes continue, and the store answers."""
        for place, actor in enumerate(world.actors):
            if actor.frozen:
                actor = self._continues(world, actor)._replace(due=min(actor.due, world.now))
            if actor.cut_off or actor.foreign_state:
                actor = actor._replace(cut_off=False, foreign_state=False)
            world = _with(world, place, actor)
            if actor.waits:
                world = self._answered(world, place)._replace(turn=NOBODY)
        world = world._replace(to_come=(), to_restart=(), late=())
        return self._woken(world) if world.asleep else world

    def quiet(self, world: World, tell: Callable[[str], None] = lambda what: None) -> World:
        """One tick without events: all nodes that have something to do do it, one after another."""
        for _ in range(MOST_STEPS):
            if not self.busy(world):
                tell("time passes")
                return self.later(world)
            for place in range(len(world.actors)):
                for _ in range(MOST_STEPS):
                    if not self.may_act(world, world.actors[place]):
                        break
                    tell(self.what_it_does(world, place))
                    world = self.act(world, place)
        must(holds=False, what="the nodes keep themselves busy")
        return world


def _join(machine: Node, name: str, now: Instant) -> None:
    machine.begin(now)
    machine.want(RendezvousStoreInfo(name, 1), lifeline=1)


def _told(world: World, actor: Actor, machine: Node) -> Actor:
    """Deliver the store's notifications to the node."""
    store = world.store
    if actor.heard_writes != store.writes:
        if machine.token != store.token:
            machine.state_changed()
        actor = actor._replace(heard_writes=store.writes)
    if machine.wants_roster and actor.heard_rosters != store.rosters:
        machine.roster_changed()
        actor = actor._replace(heard_rosters=store.rosters)
    return actor


def _heard(actor: Actor, world: World, done: RoundId, timeout: int) -> Actor:
    runs = world.state.open and world.state.round == actor.works_in
    reached = world.now if runs or not actor.works_in else actor.reached
    back = world.now if world.now - actor.heard >= timeout and actor.heard != NOT_HEARD else actor.back
    return actor._replace(heard=world.now, reached=reached, back=back, reported_done=done or actor.reported_done)


def _gone(actor: Actor, phase: int) -> Actor:
    return Actor(actor.key, None, phase, heard=actor.heard, reported_done=actor.reported_done)


def _succeeds(world: World, actor: Actor, machine: Node) -> Actor:
    machine.succeed()
    return actor._replace(phase=DONE, works_in=NO_ROUND)


def brief(operation: Operation) -> str:
    """A short description of the operation."""
    if isinstance(operation, WriteState):
        state = operation.state
        what = "closes the job" if state.closed else f"round {state.round} {'runs' if state.open else 'is over'}"
        return f"WriteState({what}, gone {' '.join(state.gone)}, done {' '.join(state.done)})"
    if isinstance(operation, Announce):
        return f"Announce({operation.entry.key}, after {operation.entry.after}, done {operation.entry.done})"
    if isinstance(operation, Heartbeat):
        return "Heartbeat(leading)" if operation.leading else "Heartbeat"
    if isinstance(operation, Withdraw):
        return f"Withdraw({operation.key})"
    return type(operation).__name__


def _with(world: World, place: int, actor: Actor) -> World:
    return world._replace(actors=(*world.actors[:place], actor, *world.actors[place + 1 :]))

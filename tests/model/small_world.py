"""A small world in which everything that may happen to a few nodes can be tried.

A world is a tuple of small numbers. What the nodes *do* in it is the code that runs in production: `decide`,
`standing`, `missed`, `verdict`, `failed`, `left`, `left_done`, `drained`, `closed`. What surrounds them (store,
entries, beats, time) is abstract:

- The store is one state. A write names the write it was decided on, and is refused when another came between. A refused
  write changes nothing and its node reads again, so that a write which is doomed is kept as no write at all.
- Reading and writing are two steps of a node: whatever others do may come between them. State and roster are read in
  one step. That loses nothing as long as a node reads the state first and the roster after it: either the state is
  still the same when the roster is read, which is as if both were read then, or the write is refused.
- Time is chosen by the adversary with every look: the last call is over or not, the time for coming back as well.
- Beats too: whoever looks sees any of the crashed nodes late, or not yet. `wrongly_late`: any of the live ones, too.
- An answer that is lost though the write landed matters where a node wants something of its own (to tell of a failure,
  to leave, ...): it wants it still, and does it again after another look. For what `decide` returned there is
  nothing that a node would remember.
- Nodes that have not come yet are all alike; a node's number is its place in the order of coming.
- Reasons in words do not count: no function decides by them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from must_hold import check_state, check_step, must

from elastic_core.clock import Instant
from elastic_core.interfaces.handler import Outcome
from elastic_core.interfaces.node import Member
from elastic_core.rendezvous.decide import Write, decide
from elastic_core.rendezvous.entry import Entry
from elastic_core.rendezvous.participant import Standing, missed, standing, verdict
from elastic_core.rendezvous.roster import Seen, waiting
from elastic_core.rendezvous.seats import Seat
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.state import Report, State, closed, drained, failed, left, left_done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elastic_core.rendezvous.roster import Roster

# Where a node is.
WANTS, RUNS, SUCCEEDED, STOPS, GOES, GONE, CRASHED = range(7)
PHASES = ("wants a round", "runs", "has succeeded", "stops its workers", "goes", "is gone", "has crashed")
ACTIVE = (WANTS, RUNS, SUCCEEDED, STOPS)

# What it wants of the state for itself.
NOTHING, FAIL, FAIL_UNCERTAIN, LEAVE, LEAVE_DONE, DRAIN, CLOSE = range(7)
WISHES = ("nothing", "tell a failure", "tell a failure, uncertain", "leave", "leave, done", "be drained", "close")

# How much of the time since enough nodes are there has passed.
EARLY, LAST_CALL_OVER, CLOSE_OVER = 0.0, 1.0, 2.0
TIMES = (EARLY, LAST_CALL_OVER, CLOSE_OVER)
NOT_WRITING = -1


class Node(NamedTuple):
    """One node.

    Args:
        number: the round it runs or ran last.
        after, done: what its entry says; after is -1 without an entry.
        wish: what it wants of the state for itself.
        target: the state it is about to write.
        seated: the last round that was formed with it, whether it knows or not.
        roster: the entries it saw last, if it decides by what it remembers.
    """

    phase: int = WANTS
    number: int = 0
    after: int = 0
    done: int = 0
    wish: int = NOTHING
    target: int = NOT_WRITING
    seated: int = 0
    roster: tuple[tuple[int, int, int], ...] = ()


class World(NamedTuple):
    """All there is: the state (its number in the book), those who came, how many may still come."""

    state: int
    nodes: tuple[Node, ...]
    to_come: int


def _key(index: int) -> str:
    return "abcdef"[index]


class Rules:
    """How worlds follow from worlds.

    Args:
        wrongly_late: whether live nodes may seem late.
        remembering: whether a node decides by entries that it read earlier than the state.
        decided: the policy; `decide` unless a fault is planted.
        fenced: whether writes are refused when another came between; false only to plant a fault.
    """

    def __init__(
        self,
        min_nodes: int,
        max_nodes: int,
        max_restarts: int = 1,
        wrongly_late: bool = False,
        decided: Callable[..., object] = decide,
        fenced: bool = True,
        remembering: bool = False,
    ) -> None:
        timeout = RendezvousTimeout(last_call=LAST_CALL_OVER, close=CLOSE_OVER)
        self.settings = RendezvousSettings("job", min_nodes, max_nodes, timeout)
        self.max_restarts = max_restarts
        self.wrongly_late = wrongly_late
        self.fenced = fenced
        self.remembering = remembering
        self._decided = decided
        self._states: list[State] = []
        self._numbers: dict[State, int] = {}
        self._decisions: dict[tuple[object, ...], int] = {}
        self._wishes: dict[tuple[int, ...], int] = {}
        self._checked: set[tuple[int, int]] = set()

    # -- the book of states

    def number_of(self, state: State) -> int:
        """The state's number; equal states have one."""
        plain = replace(state, reason="", end=state.end and replace(state.end, by="", reason=""))
        number = self._numbers.setdefault(plain, len(self._states))
        if number == len(self._states):
            self._states.append(plain)
            check_state(plain, self.settings)
        return number

    def state(self, number: int) -> State:
        """The state of that number."""
        return self._states[number]

    def empty(self, nodes: int) -> World:
        """A job that nobody has come to."""
        return World(self.number_of(State()), (), nodes)

    def running(self, members: int, to_come: int = 0) -> World:
        """A job whose first round has formed, and all members know."""
        seats = tuple(Seat(_key(index), Member(_key(index), "", "", "default", 1)) for index in range(members))
        state = State(round=1, open=True, seats=seats, max_restarts=self.max_restarts)
        return World(self.number_of(state), (Node(RUNS, 1, seated=1),) * members, to_come)

    # -- steps

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that may happen next, and the world after it."""
        if world.to_come:
            nodes = (*world.nodes, Node())
            yield f"{_key(len(world.nodes))} comes", World(world.state, nodes, world.to_come - 1)
        for index, node in enumerate(world.nodes):
            if node.phase < GONE:
                for what, after in self._steps_of(world, index, node):
                    yield f"{_key(index)} {what}", after

    def _steps_of(self, world: World, index: int, node: Node) -> Iterator[tuple[str, World]]:
        yield "crashes", _with(world, index, node._replace(phase=CRASHED, wish=NOTHING, target=NOT_WRITING, roster=()))
        if node.phase == GOES:
            yield "withdraws its entry", _with(world, index, self.gone(node))
            return
        if node.target != NOT_WRITING:
            yield from self.writes(world, index, node)
            return
        if node.wish != NOTHING:
            yield from self.pursues(world, index, node, node.wish)
            return
        for wish in self.wishes(world, index, node):
            yield from self.pursues(world, index, node, wish)
        if node.phase == RUNS:
            succeeded = node._replace(phase=SUCCEEDED, done=node.number)
            yield "succeeds", _with(world, index, succeeded)
        if node.phase == STOPS:
            yield "announces itself anew", _with(world, index, self.announced(node))
        yield from self.follows(world, index, node)
        yield from self.looks(world, index, node)

    def wishes(self, world: World, index: int, node: Node) -> tuple[int, ...]:
        """What the node may come to want."""
        drain = () if _key(index) in self.state(world.state).draining else (DRAIN,)
        if node.phase == SUCCEEDED:
            return (LEAVE_DONE, CLOSE, *drain)
        if node.phase in (RUNS, STOPS):
            return (FAIL, FAIL_UNCERTAIN, LEAVE, CLOSE, *drain)
        return (LEAVE, CLOSE, *drain)

    def announced(self, node: Node) -> Node:
        """The node after its entry says that it wants a round newer than its last."""
        return node._replace(phase=WANTS, after=node.number, done=0)

    def gone(self, node: Node) -> Node:
        """The node after its entry was withdrawn. What it was does not matter any more."""
        return node._replace(phase=GONE, number=0, after=-1, wish=NOTHING, target=NOT_WRITING, roster=())

    def pursues(self, world: World, index: int, node: Node, wish: int) -> Iterator[tuple[str, World]]:
        """The node reads the state and finds what to write for what it wants."""
        target = self._wished(world.state, index, node.number, wish)
        phase = STOPS if wish in (FAIL, FAIL_UNCERTAIN) else node.phase
        if target == world.state:
            yield (
                f"wants to {WISHES[wish]}: nothing to write",
                self._fulfilled(world, index, node._replace(phase=phase), wish),
            )
        else:
            wanting = node._replace(phase=phase, wish=wish, target=target)
            yield f"wants to {WISHES[wish]}", _with(world, index, wanting)

    def _wished(self, number: int, index: int, last: int, wish: int) -> int:
        asked = (number, index, last, wish)
        if asked not in self._wishes:
            self._wishes[asked] = self.number_of(self._wish(self.state(number), _key(index), last, wish))
        return self._wishes[asked]

    def _wish(self, state: State, key: str, last: int, wish: int) -> State:
        if wish in (FAIL, FAIL_UNCERTAIN):
            return failed(state, last, Report(key, key, (), wish == FAIL), self.max_restarts)
        if wish == LEAVE:
            return left(state, key, "asked to")
        if wish == LEAVE_DONE:
            return left_done(state, key, last)
        if wish == DRAIN:
            return drained(state, key, key)
        return closed(state, key, "asked to", succeeded=False)

    def _fulfilled(self, world: World, index: int, node: Node, wish: int) -> World:
        phase = GOES if wish in (LEAVE, LEAVE_DONE, CLOSE) else node.phase
        return _with(world, index, node._replace(phase=phase, wish=NOTHING, target=NOT_WRITING))

    def follows(self, world: World, index: int, node: Node) -> Iterator[tuple[str, World]]:
        """The node learns what the state means for it."""
        state, key = self.state(world.state), _key(index)
        if node.phase == WANTS:
            where = standing(state, key, node.after, self.settings.max_nodes)
            over = missed(state, key, node.after)
            if where is Standing.MEMBER:
                yield "learns that it is a member", _with(world, index, node._replace(phase=RUNS, number=state.round))
            elif where in (Standing.CLOSED, Standing.DRAINED, Standing.REFUSED):
                yield f"learns that it is {where.value}", _with(world, index, node._replace(phase=GOES))
            elif over is not None:
                yield "learns that it missed a round", _with(world, index, node._replace(phase=STOPS, number=over))
            return
        found = verdict(state, key, node.number)
        if found and found.outcome is Outcome.RESTART:
            if node.phase != STOPS:
                yield "learns that its round is over", _with(world, index, node._replace(phase=STOPS))
        elif found:
            yield f"learns that it is {found.outcome.value}", _with(world, index, node._replace(phase=GOES))

    def looks(self, world: World, index: int, node: Node) -> Iterator[tuple[str, World]]:
        """The node reads state and roster, and decides. What leads to no write changes nothing."""
        entries = entries_of(world)
        if self.remembering and node.roster != entries:
            yield "sees who is there", _with(world, index, node._replace(roster=entries))
        if self.remembering:
            entries = node.roster
        found = set()
        for late in self._seem_late(world, index):
            for now in TIMES:
                target = self.decision(world, entries, late, now)
                if target != world.state and target not in found:
                    found.add(target)
                    seems = f", {', '.join(_key(i) for i in late)} late" if late else ""
                    decided = _with(world, index, node._replace(target=target))
                    yield f"looks{seems} and decides ({now:g} s)", decided

    def _seem_late(self, world: World, index: int) -> Iterator[tuple[int, ...]]:
        could = [
            i
            for i, node in enumerate(world.nodes)
            if node.after >= 0 and i != index and (self.wrongly_late or node.phase == CRASHED)
        ]
        for size in range(len(could) + 1):
            yield from combinations(could, size)

    def decision(
        self, world: World, entries: tuple[tuple[int, int, int], ...], late: tuple[int, ...], now: float
    ) -> int:
        """The state that should follow."""
        asked = (world.state, entries, late, now)
        if asked not in self._decisions:
            state, roster = self.state(world.state), self._roster(entries, late)
            ready = waiting(roster, state)
            must(not any(state.open and state.seat(entry.key) for entry in ready), "a node waits and is a member")
            decision = self._decided(roster, state, self.settings, Instant(now), Instant(0.0))
            self._decisions[asked] = self.number_of(decision.state) if isinstance(decision, Write) else world.state
        return self._decisions[asked]

    def _roster(self, entries: tuple[tuple[int, int, int], ...], late: tuple[int, ...]) -> Roster:
        return tuple(
            Seen(
                Entry(_key(i), _key(i), max_restarts=self.max_restarts, after=after, done=done),
                i in late,
                Instant(0.0),
            )
            for i, after, done in entries
        )

    def writes(self, world: World, index: int, node: Node) -> Iterator[tuple[str, World]]:
        """The node's write lands. (A write that is refused is no write, see above.)"""
        after = self.written(world, index, node)
        if node.wish == NOTHING:
            yield "writes", _with(after, index, after.nodes[index]._replace(target=NOT_WRITING))
            return
        yield "writes", self._fulfilled(after, index, after.nodes[index], node.wish)
        again = after.nodes[index]._replace(target=NOT_WRITING)
        yield "writes, but the answer is lost", _with(after, index, again)

    def written(self, world: World, index: int, node: Node) -> World:
        """The world after the write: whoever was about to write on the state before is refused from now on."""
        old, new = self.state(world.state), self.state(node.target)
        if (world.state, node.target) not in self._checked:
            check_step(old, new, self.settings)
            self._checked.add((world.state, node.target))
        _check_truth(world, old, new)
        nodes = world.nodes
        if self.fenced:
            nodes = tuple(other if other.target < 0 else other._replace(target=NOT_WRITING) for other in nodes)
        if new.round > old.round:
            nodes = tuple(
                other._replace(seated=new.round) if new.seat(_key(i)) else other for i, other in enumerate(nodes)
            )
        return World(node.target, nodes, world.to_come)

    # -- what must become of it when nothing bad happens any more

    def settled(self, world: World) -> bool:
        """Whether the job is over, cannot go on for lack of nodes, or runs with everybody who can be in it."""
        state = self.state(world.state)
        if any(node.phase == GOES for node in world.nodes):
            return False
        if state.closed:
            return not any(node.phase in ACTIVE for node in world.nodes)
        if any(node.wish != NOTHING or node.target != NOT_WRITING for node in world.nodes if node.phase in ACTIVE):
            return False
        here = [i for i, node in enumerate(world.nodes) if node.phase in ACTIVE]
        if not here:
            return True
        if not state.open:
            return len(here) < self.settings.min_nodes and all(world.nodes[i].phase == WANTS for i in here)
        members = [world.nodes[i] for i in here if state.seat(_key(i)) and _key(i) not in state.done]
        if len(members) < len(state.surviving) and not self._only_done_crashed(world, state):
            return False
        if any(node.phase not in (RUNS, SUCCEEDED) or node.number != state.round for node in members):
            return False
        ending = (
            bool(state.done)
            or any(node.phase == SUCCEEDED for node in world.nodes)
            or any(node.done == state.round for node in world.nodes if node.phase == CRASHED)
        )
        full = len(state.surviving) >= self.settings.max_nodes
        return full or ending or len(members) == len(here)

    def _only_done_crashed(self, world: World, state: State) -> bool:
        """Whoever has succeeded may crash: it is not missed as long as others run."""
        return all(
            world.nodes["abcdef".index(seat.key)].phase in ACTIVE
            or world.nodes["abcdef".index(seat.key)].done == state.round
            for seat in state.surviving
        )

    def sweep(self, world: World, now: float) -> World:
        """Every node in its turn does what it does when nothing bad happens any more: beats come, crashed ones are seen
        late, nobody fails, leaves or is asked to."""
        for index in range(len(world.nodes)):
            world = self._fair_step(world, index, now)
        return world

    def _fair_step(self, world: World, index: int, now: float) -> World:
        node = world.nodes[index]
        if node.phase >= GONE:
            return world
        if node.phase == GOES:
            return _with(world, index, self.gone(node))
        if node.target != NOT_WRITING:
            return next(self.writes(world, index, node))[1]
        if node.wish != NOTHING:
            return next(self.pursues(world, index, node, node.wish))[1]
        for _, after in self.follows(world, index, node):
            return after
        if node.phase == STOPS:
            return _with(world, index, self.announced(node))
        late = tuple(i for i, other in enumerate(world.nodes) if other.phase == CRASHED and other.after >= 0)
        target = self.decision(world, entries_of(world), late, now)
        return world if target == world.state else _with(world, index, node._replace(target=target))


def entries_of(world: World) -> tuple[tuple[int, int, int], ...]:
    """All entries, oldest first: whose, and what they say."""
    return tuple((i, node.after, node.done) for i, node in enumerate(world.nodes) if node.after >= 0)


def _with(world: World, index: int, node: Node) -> World:
    return World(world.state, (*world.nodes[:index], node, *world.nodes[index + 1 :]), world.to_come)


def _check_truth(world: World, old: State, new: State) -> None:
    """What only somebody knows who sees all nodes at once."""
    if new.round > old.round:
        for index, node in enumerate(world.nodes):
            if new.seat(_key(index)) and node.phase < GOES:
                must(node.after >= node.seated, f"{_key(index)} was seated before it announced itself anew")
    if new.closed and new.closed.succeeded:
        for seat in new.seats:
            node = world.nodes["abcdef".index(seat.key)]
            must(node.done == new.round or seat.key in new.done, f"closed with success, but {seat.key} is not done")

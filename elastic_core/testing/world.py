"""A whole job in one thread: hundreds of nodes, each with the keeper that it has in production, over a memory in which
everything can go wrong, on a clock that is told to go on. Every write of the state is checked for what must hold."""

from __future__ import annotations

import enum
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.clock import later
from elastic_core.errors import ElasticError
from elastic_core.interfaces.handler import Outcome
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.codec import decoded_entry, decoded_state
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.participant import Standing, missed, standing, verdict
from elastic_core.rendezvous.state import Report, State, closed, drained, failed, left, left_done
from elastic_core.testing.backend import MemoryBackend, SharedMemory
from elastic_core.testing.clock import FakeClock

if TYPE_CHECKING:
    from elastic_core.clock import Duration, Instant
    from elastic_core.rendezvous.seats import Seat
    from elastic_core.rendezvous.settings import RendezvousSettings
    from elastic_core.rendezvous.view import View

_MOST_TURNS = 200  # of one node at one instant; more is a node that keeps itself busy


class Phase(enum.Enum):
    """Where a node of the world is."""

    WANTS = "wants a round"
    RUNS = "runs"
    DONE = "has succeeded"
    GONE = "is gone"
    CRASHED = "has crashed"


class WorldNode:
    """One node: a keeper, and the little that an agent does with it.

    Attributes:
        rounds: the rounds it ran, each with its rank.
    """

    def __init__(self, name: str, settings: RendezvousSettings, memory: SharedMemory, clock: FakeClock) -> None:
        self.name = name
        self.key = f"{name}/1"
        self.backend = MemoryBackend(memory)
        self.phase = Phase.WANTS
        self.rounds: list[tuple[int, int]] = []
        self.frozen = False
        self.due = clock.now()
        self.news = True
        self.seen_writes = 0
        self.seen_rosters = 0
        self._settings = settings
        self._entry = entry_of(Node(name, host=name, max_restarts=3), self.key)
        self.keeper = Keeper(self.backend, settings, self._entry, clock, self._follow)
        self.keeper.want(self._entry)

    @property
    def number(self) -> int:
        """The round it runs or ran last; 0 for none."""
        return self.rounds[-1][0] if self.rounds else 0

    @property
    def active(self) -> bool:
        return self.phase in (Phase.WANTS, Phase.RUNS, Phase.DONE)

    def want(self, after: int, done: int = 0) -> None:
        """Announce this, and take a turn."""
        self._entry = replace(self._entry, after=after, done=done)
        self.keeper.want(self._entry)
        self.news = True

    def go(self) -> None:
        """Withdraw; what was asked for before is carried out first."""
        self.phase = Phase.GONE
        self.keeper.withdraw()
        self.news = True

    def _follow(self, view: View) -> None:
        if view.state is None or not self.active:
            return
        if self.phase is Phase.WANTS:
            self._join(view.state)
            return
        found = verdict(view.state, self.key, self.number)
        if found and found.outcome is Outcome.RESTART:
            self.phase = Phase.WANTS
            self.want(self.number)
        elif found:
            self.go()

    def _join(self, state: State) -> None:
        stands = standing(state, self.key, self._entry.after, self._settings.max_nodes)
        over = missed(state, self.key, self._entry.after)
        rank = state.rank(self.key)
        if stands is Standing.MEMBER and rank is not None:
            self.phase = Phase.RUNS
            self.rounds.append((state.round, rank))
        elif stands in (Standing.CLOSED, Standing.DRAINED, Standing.REFUSED):
            self.go()
        elif over is not None:
            self.want(over)


class World:
    """See above. Nodes are called by name; all that happens follows from `seed`.

    Args:
        leases: whether the store itself drops the entries of those that have not beaten for a window.

    Attributes:
        history: the seats of every round that formed, by its number.
    """

    def __init__(self, settings: RendezvousSettings, seed: int = 0, leases: bool = False) -> None:
        self.settings = settings
        self.clock = FakeClock()
        self.memory = SharedMemory(on_write=self._check_write, leases=leases)
        self._leases: dict[str, tuple[int | None, Instant]] = {}
        self.nodes: dict[str, WorldNode] = {}
        self.history: dict[int, tuple[Seat, ...]] = {}
        self._random = random.Random(seed)

    # -- what may happen

    def join(self, name: str) -> WorldNode:
        """A node starts. Raises ValueError for a name that was used."""
        if name in self.nodes:
            raise ValueError(f"expected a name that was not used, found {name!r}")
        self.nodes[name] = WorldNode(name, self.settings, self.memory, self.clock)
        return self.nodes[name]

    def crash(self, name: str) -> None:
        """It is never heard of again; its entry stays."""
        self.nodes[name].phase = Phase.CRASHED

    def freeze(self, name: str, frozen: bool = True) -> None:
        """It does nothing, like a process that was stopped (SIGSTOP), until it is let go on."""
        self.nodes[name].frozen = frozen
        self.nodes[name].news = True

    def partition(self, name: str, reachable: bool = False) -> None:
        """It cannot reach the store, until it can again."""
        self.nodes[name].backend.reachable = reachable
        self.nodes[name].news = True

    def forget(self) -> None:
        """The store loses its memory."""
        self.memory.forget()

    def end_lease(self, name: str) -> None:
        """The store drops its entry, for no fault of the node."""
        self.memory.drop(self.nodes[name].key)

    def lose_answers(self, name: str, count: int = 1) -> None:
        """Its next writes land, and it does not learn of it."""
        self.nodes[name].backend.lose_answers = count

    def fail(self, name: str, certain: bool = True) -> None:
        """Workers of it fail."""
        node = self.nodes[name]
        number, report = node.number, Report(node.key, name, (), certain)
        node.keeper.amend(lambda state: failed(state, number, report, 3))
        node.news = True

    def succeed(self, name: str) -> None:
        """All its workers succeed."""
        node = self.nodes[name]
        if node.phase is Phase.RUNS:
            node.phase = Phase.DONE
            node.want(node.keeper.view.announced.after if node.keeper.view.announced else 0, done=node.number)

    def leave(self, name: str) -> None:
        """It goes, and says so."""
        node = self.nodes[name]
        number, done = node.number, node.phase is Phase.DONE
        node.keeper.amend(
            lambda state: left_done(state, node.key, number) if done else left(state, node.key, "asked to")
        )
        node.go()

    def drain(self, name: str, through: str) -> None:
        """Somebody asks node `name` to leave, by way of node `through`."""
        key = self.nodes[name].key
        self.nodes[through].keeper.amend(lambda state: drained(state, key, name))
        self.nodes[through].news = True

    def close(self, name: str) -> None:
        """Node `name` closes the job."""
        self.nodes[name].keeper.amend(lambda state: closed(state, name, "asked to", succeeded=False))
        self.nodes[name].news = True

    # -- going on

    def run(self, seconds: Duration) -> None:
        """Let time pass, and every node do what is due. Raises AssertionError when something is wrong."""
        until = later(self.clock.now(), seconds)
        while True:
            self._settle()
            due = min((node.due for node in self._turning()), default=later(until, 1.0))
            if due > until:
                break
            self.clock.advance(max(due - self.clock.now(), 0.0))
            self._end_leases()
        self.clock.advance(until - self.clock.now())

    def _end_leases(self) -> None:
        """Of those that have stood still for a window."""
        if not self.memory.leases:
            return
        now, entries = self.clock.now(), self.memory.entries
        before, self._leases = self._leases, {}
        for key, item in list(entries.items()):
            known = before.get(key)
            since = known[1] if known is not None and known[0] == item.beats else now
            self._leases[key] = (item.beats, since)
            if now - since >= self.settings.window:
                self.memory.drop(key)

    def _turning(self) -> list[WorldNode]:
        return [n for n in self.nodes.values() if n.phase is not Phase.CRASHED and not n.frozen]

    def _settle(self) -> None:
        """All turns that are due now, in an order that changes from time to time."""
        for _ in range(_MOST_TURNS):
            self._tell()
            now = self.clock.now()
            ready = [node for node in self._turning() if node.news or node.due <= now]
            if not ready:
                return
            self._random.shuffle(ready)
            for node in ready:
                node.news = False
                node.due = node.keeper.turn()
                fault = node.keeper.view.fault
                if fault is not None and not isinstance(fault, ElasticError):
                    raise AssertionError(f"{node.name}: {type(fault).__name__}: {fault}") from fault
        busy = ", ".join(node.name for node in ready)
        raise AssertionError(f"expected an end of turns at {self.clock.now()} s, found that these keep busy: {busy}")

    def _tell(self) -> None:
        """What a backend pushes: the state to everybody, the roster to those who lead."""
        for node in self._turning():
            if not node.backend.reachable:
                continue
            if node.seen_writes != self.memory.writes:
                node.seen_writes = self.memory.writes
                if node.keeper.view.token != self.memory.writes:
                    node.keeper.state_changed()
                    node.news = True
            if node.keeper.leading and node.seen_rosters != self.memory.rosters:
                node.seen_rosters = self.memory.rosters
                node.keeper.roster_changed()
                node.news = True

    # -- what must hold

    @property
    def state(self) -> State:
        """What stands in the store."""
        return State() if self.memory.state is None else decoded_state(self.memory.state[0])

    def members(self) -> list[str]:
        """The names of the members of the round that runs, in rank order; empty when none does."""
        state = self.state
        return [seat.member.node for seat in state.seats] if state.open else []

    @property
    def ending(self) -> bool:
        """Whether a member of the last round has succeeded, whatever became of it since: nobody is let in any more."""
        state = self.state
        entries = [decoded_entry(item.entry) for item in self.memory.entries.values() if state.seated(item.key)]
        return bool(state.done) or any(0 < entry.done == state.round for entry in entries)

    def in_step(self) -> bool:
        """Whether a round runs, every live node that can be in it is, and all members know it."""
        state = self.state
        wanting = [node for node in self.nodes.values() if node.active]
        running = [node for node in wanting if node.phase is not Phase.WANTS and node.number == state.round]
        expected = min(len(wanting), self.settings.max_nodes)
        return state.open and len(running) == len(state.surviving) == expected

    def _check_write(self, before: bytes | None, after: bytes) -> None:
        old, new = State() if before is None else decoded_state(before), decoded_state(after)
        assert not old.closed, "the state was written after the job was closed"
        if self.memory.forgotten and self._is_given_back(new):
            return
        assert old.round <= new.round <= old.round + 1, f"round {new.round} after round {old.round}"
        assert 0 <= new.restarts - old.restarts <= 1, f"{new.restarts} restarts after {old.restarts}"
        assert not set(new.gone) & set(new.done), "a node is gone and done"
        if new.round == old.round:
            assert new.seats == old.seats, f"the members of round {new.round} changed"
            assert old.open or not new.open, f"round {new.round} was taken up again"
        else:
            self._check_round(old, new)

    def _is_given_back(self, new: State) -> bool:
        return any(node.keeper.view.state == new for node in self.nodes.values())

    def _check_round(self, old: State, new: State) -> None:
        assert not old.open, f"round {new.round} formed while round {old.round} ran"
        assert self.settings.min_nodes <= len(new.seats) <= self.settings.max_nodes, f"{len(new.seats)} members"
        assert len({seat.key for seat in new.seats}) == len(new.seats), "a node has two ranks"
        assert not {seat.key for seat in new.seats} & set(old.draining), "a node that is drained was seated"
        for seat in new.seats:
            node = self.nodes[seat.member.node]
            announced = self.memory.entries.get(seat.key)
            assert announced is None or node.phase is not Phase.RUNS or node.number > old.round, (
                f"{node.name} was seated in round {new.round} while it runs round {node.number}"
            )
        self.history[new.round] = tuple(new.seats)

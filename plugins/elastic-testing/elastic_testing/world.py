"""Simulates a job of hundreds of nodes in one thread, with the production class `Node`, a store with all kinds of
faults, and a fake clock. Invariants are checked at every write of the state."""

from __future__ import annotations

import enum
import random
from collections import Counter
from typing import TYPE_CHECKING

from elastic_core import plugin
from elastic_core.plugin import ElasticError, Outcome, RendezvousConnectionError, RendezvousStoreInfo, later
from elastic_core.rendezvous import model
from elastic_core.rendezvous.effects import Announce, ChangeState, Idle, Withdraw, WriteState
from elastic_core.rendezvous.model import NO_ROUND, Entry, Report, RoundId, State
from elastic_core.rendezvous.node import Node
from elastic_testing.fakes import FakeClock
from elastic_testing.store_model import StoreModel

if TYPE_CHECKING:
    from elastic_core.plugin import Duration, Instant, RendezvousSettings
    from elastic_core.rendezvous.effects import Operation

_MOST_STEPS = 2000  # steps that one node may take at one instant; more of them mean an endless loop
_FAR = 1e9


class Phase(enum.Enum):
    """The phase of a simulated node."""

    WANTS = "wants a round"
    RUNS = "runs"
    STOPS = "stops its workers"
    DONE = "has succeeded"
    GONE = "has left"
    CRASHED = "has crashed"


class WorldNode:
    """A simulated node with a minimal agent.

    Args:
        name: the node's name. Several nodes may have the same name, but each has a different key.

    Attributes:
        stops_in: seconds that the node's workers take to stop (0).
        rounds: the rounds in which the node has run workers, each with the node's rank.
        machine: the state machine of the node.
        calls: number of operations of each kind, by class name.
        works_in: the round of the node's running workers; `NO_ROUND` if none are running.
        reachable, frozen: see `World.partition` and `World.freeze`.
    """

    def __init__(self, name: str, key: str, settings: RendezvousSettings, now: Instant) -> None:
        self.name = name
        self.key = key
        self.stops_in: Duration = 0.0
        node = plugin.Node(name, host=name, max_restarts=3, stop_timeout=0.0)
        self.machine = Node(Entry.of(node, key), settings)
        self.phase = Phase.WANTS
        self.rounds: list[tuple[RoundId, int]] = []
        self.works_in = NO_ROUND
        self.frozen = False
        self.reachable = True
        self.lose_answers = 0
        self.delay_writes = 0
        self.unreachable: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.hangs: Operation | None = None
        self.due = now
        self.seen_writes = -1
        self.seen_rosters = -1
        self.stopped_at = now
        self.join(now)

    @property
    def round(self) -> RoundId:
        """The round in which the node is running or ran last."""
        return self.rounds[-1][0] if self.rounds else NO_ROUND

    @property
    def active(self) -> bool:
        return self.phase in (Phase.WANTS, Phase.RUNS, Phase.STOPS, Phase.DONE)

    def join(self, now: Instant) -> None:
        """Ask for the next round."""
        self.phase = Phase.WANTS
        self.machine.begin(now)
        suspects = {seat.key for seat in self.machine.suspects(64)}
        self.machine.want(RendezvousStoreInfo(self.name, 1), tuple(sorted(suspects & self.unreachable)))
        self.due = now

    def go(self, reason: str) -> None:
        """Leave the job, and announce the departure."""
        self.phase, self.works_in = Phase.GONE, NO_ROUND
        self.machine.retire(reason)

    def follow(self, now: Instant, grace: Duration) -> None:
        """Act on the node's decisions, as an agent does."""
        if self.phase is Phase.WANTS:
            self._follow_join(now)
        elif self.phase in (Phase.RUNS, Phase.DONE):
            found = self.machine.verdict(now, grace)
            if found and found.outcome in (Outcome.RESTART, Outcome.FENCED):
                self.phase = Phase.STOPS
                self.stopped_at = later(now, self.stops_in if self.works_in else 0.0)
            elif found:
                self.go("the job is over")
        if self.phase is Phase.STOPS and now >= self.stopped_at:
            self.works_in = NO_ROUND
            self.join(now)

    def _follow_join(self, now: Instant) -> None:
        member = self.machine.membership
        if member.running and member.formed is not None:
            rank = member.formed.rank(self.key)
            assert rank is not None
            self.phase, self.works_in = Phase.RUNS, member.round
            self.rounds.append((member.round, rank))
        elif (obstacle := self.machine.obstacle(now)) is not None and not isinstance(
            obstacle, RendezvousConnectionError
        ):
            self.go(str(obstacle))

    def next_look(self, now: Instant, grace: Duration) -> Instant:
        """Return the time at which `follow` has to be called next, even if nothing changes."""
        if self.phase is Phase.STOPS:
            return self.stopped_at
        if self.phase in (Phase.RUNS, Phase.DONE):
            return max(self.machine.connection.fence_at(grace, now), now)
        return later(now, _FAR)


class World:
    """A simulated job. Nodes are identified by name. The same calls with the same `seed` always give the same run.

    Args:
        leases: whether the store drops the entry of a node that has sent no heartbeat for `lease_ttl` seconds
            (default: the failure timeout).
        grace: the value of `RosterBackend.grace`, in seconds (0).

    Attributes:
        store: the content of the store.
    """

    def __init__(
        self, settings: RendezvousSettings, seed: int = 0, leases: bool = False, grace: Duration = 0.0
    ) -> None:
        self.settings = settings
        self.grace = grace
        self.clock = FakeClock()
        self.store = StoreModel(leases=leases)
        self.nodes: dict[str, WorldNode] = {}
        self.sleeping = False
        self.forgotten = 0
        self._groups: dict[RoundId, tuple[str, ...]] = {}
        self._late: list[tuple[Operation, int]] = []
        self._reported_done: set[tuple[str, RoundId]] = set()
        self._leases: dict[str, tuple[tuple[int, int], Instant]] = {}
        self._random = random.Random(seed)

    # -- events and faults

    def join(self, name: str, called: str | None = None) -> WorldNode:
        """Start a node that announces `called` (default: `name`). Raises ValueError if `name` was used before."""
        if name in self.nodes:
            raise ValueError(f"the name {name!r} was used before")
        made = self.nodes[name] = WorldNode(called or name, f"{name}/1", self.settings, self.clock.now())
        return made

    def crash(self, name: str) -> None:
        """Crash the node. Its entry remains in the store."""
        node = self.nodes[name]
        node.phase, node.works_in = Phase.CRASHED, NO_ROUND

    def freeze(self, name: str, frozen: bool = True) -> None:
        """Suspend the node, as SIGSTOP suspends a process, or let it continue."""
        self.nodes[name].frozen = frozen

    def partition(self, name: str, reachable: bool = False) -> None:
        """Disconnect the node from the store, or reconnect it."""
        self.nodes[name].reachable = reachable

    def separate(self, one: str, other: str, apart: bool = True) -> None:
        """Disconnect two nodes from each other, or reconnect them. Both nodes can still reach the store. While they are
        disconnected, their workers fail if both are in a round."""
        for mine, theirs in ((one, other), (other, one)):
            keys = self.nodes[mine].unreachable
            (keys.add if apart else keys.discard)(self.nodes[theirs].key)

    def sleep(self, asleep: bool = True) -> None:
        """Suspend the store, as SIGSTOP does, or let it perform its pending operations, in random order."""
        self.sleeping = asleep

    def forget(self) -> None:
        """Make the store lose its data."""
        self.store = self.store.forgotten()
        self.forgotten += 1

    def end_lease(self, name: str) -> None:
        """Drop the node's entry from the store, although the node is alive."""
        self.store = self.store.dropped(self.nodes[name].key)

    def lose_answers(self, name: str, count: int = 1) -> None:
        """Lose the replies to the node's next `count` operations, which still take effect."""
        self.nodes[name].lose_answers = count

    def delay_writes(self, name: str, count: int = 1) -> None:
        """Make the node's next `count` writes appear to fail, although they take effect later (see `catch_up`)."""
        self.nodes[name].delay_writes = count

    def catch_up(self) -> None:
        """Perform all delayed writes now, in random order."""
        late, self._late = self._late, []
        self._random.shuffle(late)
        for operation, number in late:
            self._perform(operation, number)

    def fail(self, name: str, certain: bool = True) -> None:
        """Make the node's workers fail. `certain` is false if the loss of a peer may have been the cause."""
        node = self.nodes[name]
        node.machine.request(ChangeState(model.failed, (node.round, Report(node.key, node.name, (), certain))))
        node.due = self.clock.now()

    def succeed(self, name: str) -> None:
        """Make all of the node's workers succeed."""
        node = self.nodes[name]
        if node.phase is Phase.RUNS:
            node.phase, node.works_in = Phase.DONE, NO_ROUND
            node.machine.succeed()
            node.due = self.clock.now()

    def leave(self, name: str) -> None:
        """Make the node leave the job, and announce its departure."""
        self.nodes[name].go("asked to")
        self.nodes[name].due = self.clock.now()

    def drain(self, name: str, through: str) -> None:
        """Ask node `name` to leave the job. Node `through` writes the request."""
        self.nodes[through].machine.request(ChangeState(model.drained, (self.nodes[name].key,)))
        self.nodes[through].due = self.clock.now()

    def close(self, name: str) -> None:
        """Make the node close the job."""
        self.nodes[name].machine.close("asked to", succeeded=False)
        self.nodes[name].due = self.clock.now()

    # -- time

    def run(self, seconds: Duration) -> None:
        """Advance time, and let every node act when it is due. Raises AssertionError if an invariant is violated."""
        until = later(self.clock.now(), seconds)
        while True:
            self._settle()
            now = self.clock.now()
            looks = [min(self._due(node), node.next_look(now, self.grace)) for node in self._acting()]
            due = min(looks, default=later(until, 1.0))
            if due > until:
                break
            self.clock.advance(max(due - now, 0.0))
            self._end_leases()
        self.clock.advance(until - self.clock.now())

    def _end_leases(self) -> None:
        """Drop the entries of nodes that have sent no heartbeat for the duration of a lease."""
        if not self.store.leases:
            return
        now, ttl = self.clock.now(), self.settings.lease_ttl or self.settings.failure_timeout
        before, self._leases = self._leases, {}
        for key, row in self.store.rows:
            known = before.get(key)
            heard = row.number, row.beats  # an announcement after the lease has expired starts a new lease
            since = known[1] if known is not None and known[0] == heard else now
            self._leases[key] = (heard, since)
            if now - since >= ttl:
                self.store = self.store.dropped(key)

    def _acting(self) -> list[WorldNode]:
        return [n for n in self.nodes.values() if n.phase is not Phase.CRASHED and not n.frozen]

    def _settle(self) -> None:
        """Perform all operations that are due now, in random order."""
        for _ in range(_MOST_STEPS * max(len(self.nodes), 1)):
            self._tell()
            now = self.clock.now()
            for node in self._acting():
                node.follow(now, self.grace)
            self._part_workers()
            ready = [node for node in self._acting() if node.due <= now and self._may_act(node)]
            if not ready:
                return
            for node in self._random.sample(ready, len(ready)):
                self._act(node, now)
        busy = ", ".join(node.name for node in ready)
        raise AssertionError(f"these nodes were still issuing operations at {now} s: {busy}")

    def _may_act(self, node: WorldNode) -> bool:
        return node.hangs is None or not (self.sleeping and node.reachable)

    def _due(self, node: WorldNode) -> Instant:
        """Return the time of the node's next action, which is far in the future while the node waits for the store."""
        return node.due if self._may_act(node) else later(self.clock.now(), _FAR)

    def _act(self, node: WorldNode, now: Instant) -> None:
        step = node.machine.next(now) if node.hangs is None else node.hangs
        node.hangs = None
        if isinstance(step, Idle):
            node.due = max(step.until, now)
        elif self.sleeping and node.reachable:
            node.hangs = step
        else:
            self._answer(node, step, now)

    def _answer(self, node: WorldNode, operation: Operation, now: Instant) -> None:
        node.calls[type(operation).__name__] += 1
        writes = isinstance(operation, (WriteState, Announce, Withdraw))
        try:
            if not node.reachable:
                raise RendezvousConnectionError("the test made the store unreachable")
            if node.delay_writes and writes:
                node.delay_writes -= 1
                self._late.append((operation, node.calls.total()))
                raise RendezvousConnectionError("the test delayed the write")
            answer = self._perform(operation, node.calls.total())
            if node.lose_answers:
                node.lose_answers -= 1
                raise RendezvousConnectionError("the test dropped the reply")
        except ElasticError as error:
            node.machine.broke(error, now)
        else:
            node.machine.answered(answer, now)
        node.machine.pop_log_lines()
        node.machine.pop_settled()

    def _perform(self, operation: Operation, number: int) -> object:
        before = self.store.state
        if isinstance(operation, Announce) and operation.entry.done:
            self._reported_done.add((operation.entry.node, operation.entry.done))
        self.store, answer = self.store.performed(operation, number)
        if self.store.state is not before and self.store.state is not None:
            self._check_write(before or State(), self.store.state)
        return answer

    def _tell(self) -> None:
        """Notify the nodes as a backend does: all nodes of a new state, and leaders also of a changed roster."""
        now = self.clock.now()
        for node in self._acting():
            if not node.reachable or self.sleeping:
                continue
            if node.seen_writes != self.store.writes:
                node.seen_writes = self.store.writes
                if node.machine.token != self.store.token:
                    node.machine.state_changed()
                    node.due = now
            if node.machine.wants_roster and node.seen_rosters != self.store.rosters:
                node.seen_rosters = self.store.rosters
                node.machine.roster_changed()
                node.due = now

    def _part_workers(self) -> None:
        """Make the workers of nodes that cannot reach each other fail, as real workers do after losing a peer."""
        for node in self._acting():
            peers = [n for n in self.nodes.values() if n.works_in == node.works_in and n.key in node.unreachable]
            if node.works_in and peers and node.phase is Phase.RUNS and node.machine.verdict(self.clock.now()) is None:
                self.fail(node.key.rpartition("/")[0], certain=False)
                node.phase, node.works_in = Phase.STOPS, NO_ROUND
                node.stopped_at = self.clock.now()

    # -- invariants

    @property
    def state(self) -> State:
        """The state in the store."""
        return self.store.state or State()

    def members(self) -> list[str]:
        """Return the names of the running round's members, in rank order; empty if no round runs."""
        state = self.state
        return [member.node for member in state.seats.members] if state.open else []

    @property
    def ending(self) -> bool:
        """Whether a member of the last round has succeeded, even if it has left since. If so, no node may join."""
        state = self.state
        entries = [row.entry for key, row in self.store.rows if state.seated(key)]
        return bool(state.done) or any(entry.done and entry.done == state.round for entry in entries)

    def in_step(self) -> bool:
        """Return whether a round is running with as many live nodes as possible, and all of its members know it."""
        state = self.state
        wanting = [node for node in self.nodes.values() if node.active]
        running = [node for node in wanting if node.phase is not Phase.WANTS and node.round == state.round]
        expected = min(len(wanting), self.settings.max_nodes)
        return state.open and len(running) == len(state.busy) == expected

    def _check_write(self, old: State, new: State) -> None:
        assert not old.closed, "the state was written after the job was closed"
        group = tuple(new.seats.keys)
        assert self._groups.setdefault(new.round, group) == group, f"two groups have the id of round {new.round}"
        if self.forgotten and self._is_given_back(old, new):
            return
        assert new.round.number - old.round.number in (0, 1), f"round {new.round} after round {old.round}"
        assert 0 <= new.restarts - old.restarts <= 1, f"{new.restarts} restarts after {old.restarts}"
        assert not set(new.gone) & set(new.done), "a node is marked both as gone and as done"
        if new.round == old.round:
            assert new.seats == old.seats, f"the members of round {new.round} changed"
            assert old.open or not new.open, f"round {new.round} was opened again"
            assert set(old.done) <= set(new.done), "a node is no longer marked as done"
            self._check_end(old, new)
        else:
            self._check_round(old, new)

    def _is_given_back(self, old: State, new: State) -> bool:
        known = [node.machine.state for node in self.nodes.values() if node.machine.state is not None]
        return any(new in (state, model.recovered(state, old)) for state in known)

    def _check_end(self, old: State, new: State) -> None:
        """Check that a round does not end because of a node that has succeeded."""
        if old.open and not new.open and not new.closed and new.end is not None:
            done = {name for name, round_id in self._reported_done if round_id == old.round}
            blamed = set(new.end.by.split(", "))
            healthy = new.end.cause in (model.Cause.LOST, model.Cause.LEFT, model.Cause.DRAINED)
            assert not (healthy and blamed <= done), f"round {old.round} ended because of {blamed}, which had succeeded"

    def _check_round(self, old: State, new: State) -> None:
        assert not old.open, f"round {new.round} formed while round {old.round} ran"
        assert self.settings.min_nodes <= len(new.seats) <= self.settings.max_nodes, f"{len(new.seats)} members"
        assert len(set(new.seats.keys)) == len(new.seats), "a node has two ranks"
        assert not set(new.seats.keys) & set(old.draining), "a draining node was seated"
        by_key = {node.key: node for node in self.nodes.values()}
        for seat in new.seats:
            node = by_key[seat.key]
            announced = self.store.beats(seat.key) is not None
            assert not announced or node.phase is not Phase.RUNS or node.round.number > old.round.number, (
                f"{node.name} was seated in round {new.round} while it runs round {node.round}"
            )
        self._check_workers(old, new, by_key)

    def _check_workers(self, old: State, new: State, by_key: dict[str, WorldNode]) -> None:
        """Check that no round forms while a live member of the last one still runs workers. A node that is frozen or
        cannot reach the store is not considered alive, because it stops its workers itself."""
        for key in old.seats.keys:
            node = by_key.get(key)
            if node is None or node.phase is Phase.CRASHED or node.frozen or not node.reachable:
                continue
            fresh = self.store.beats(key) is not None and not self.forgotten
            late = key in old.gone
            assert not (fresh and not late and 0 < node.works_in.number <= old.round.number), (
                f"round {new.round} formed while {node.name} still runs workers of round {node.works_in}"
            )

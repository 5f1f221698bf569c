"""A small world below the node: production nodes over a production `StoreBackend`, where each store operation is a
separate step. Between any two steps, another node may act, the connection may break, the store may lose its data or
move, and its host may die. A seed decides which of these happens.

Code that blocks runs in a thread, one step at a time, and the world controls the clock.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from elastic_testing import FakeClock
from must_hold import Violation, must

from elastic_core.builtin import MemoryStore
from elastic_core.errors import ProcessFailure, RendezvousConnectionError
from elastic_core.interfaces import node as described
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.rendezvous.driver import Operations
from elastic_core.rendezvous.effects import HandOver, Idle, WriteState
from elastic_core.rendezvous.model import Entry
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.rendezvous.store_backend import StoreBackend
from elastic_core.rendezvous.store_connection import StoreConnection
from elastic_core.rendezvous.versions import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from elastic_core.rendezvous.effects import Operation
    from elastic_core.rendezvous.model import RoundId, State

ENDPOINT = "127.0.0.1:1"
FAILURE = {0: ProcessFailure(0, 1, 1, global_rank=0)}
WRITES = ("set", "add", "compare_set")
OPERATIONS = (*WRITES, "check", "delete_key", "multi_get")
EVENTS = ("crash", "restart", "fail", "leave", "answer lost", "never done", "done late", "forget", "freeze")
MOST_STEPS = 60_000
KEEPERS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class Thread:
    """A thread that runs only when the world lets it."""

    def __init__(self, owner: Machine, what: str) -> None:
        self.owner, self.name = owner, f"{owner.key} {what}"
        self.go = threading.Semaphore(0)
        self.thread = threading.current_thread()
        self.waits_for: Wait | None = None
        self.next: tuple[str, str] = ("", "")
        self.fault = ""


class Wait(NamedTuple):
    """A wait for a key in a store, at most until a time."""

    connection: Connection
    key: str
    until: float
    closed: threading.Event


class Place:
    """A store, its address, and the machine that serves it."""

    def __init__(self, where: str, host: Machine) -> None:
        self.where, self.host = where, host
        self.store = MemoryStore(timedelta(seconds=1))
        self.alive = True
        self.kept = False  # whether its host gave up handing it over and has recorded that
        self.lives = 0
        self.keys: dict[str, None] = {}  # those that have been written; some may be deleted
        self.before: dict[str, bytes] = {}

    def operate(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in WRITES:
            self.keys[arguments[0]] = None
        if name != "multi_get":
            return getattr(self.store, name)(*arguments)
        if not self.store.check(arguments[0]):
            raise TimeoutError("timeout")
        return [self.store.get(key) for key in arguments[0]]

    def data(self) -> dict[str, bytes]:
        return {key: self.store.get(key) for key in self.keys if self.store.check([key])}

    def record_of_its_move(self) -> str | None:
        """Return the store's record of where it has moved, or that it stays. There is no record if the host was alone.
        Other nodes may then direct those that come later to their own store."""
        name = Keys("job").id
        key = Keys("job", self.store.get(name).decode()).moved if self.store.check([name]) else name
        return self.store.get(key).decode() if key != name and self.store.check([key]) else None


class Connection(StoreConnection):
    """A machine's connection to a place. `place`: None for an address at which no store answers."""

    def __init__(self, world: Below, machine: Machine, place: Place | None) -> None:
        super().__init__(Client(world, self), "" if place is None else place.where)
        self.machine, self.place, self.broken = machine, place, False
        self._world = world

    def check(self) -> Place:
        if self.broken or self.place is None or not self.place.alive or self.machine.dead:
            self.broken = self.place is not None
            raise BrokenPipeError("the connection broke")
        return self.place

    def fetch(self, key: str, timeout: float, closed: threading.Event) -> bytes | None:
        until = self._world.clock.now() + timeout
        while True:
            self._world.pause(self.machine, Wait(self, key, until, closed))
            if closed.is_set():
                return None
            if self.place is not None:
                store = self.check().store
                if store.check([key]):
                    return store.get(key)
            if self._world.clock.now() >= until:
                return None

    def shorten_timeout(self, seconds: float) -> None:
        pass

    def abort(self) -> None:
        self.broken = True

    def release(self) -> None:
        self.broken = True


class Client:
    """The operations of a store. Each one is a step of the world."""

    def __init__(self, world: Below, connection: Connection) -> None:
        self._world, self._connection = world, connection

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPERATIONS:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            fault = self._world.pause(self._connection.machine, following=(name, str(arguments[0])))
            place = self._connection.check()
            if not fault:
                return place.operate(name, arguments)
            self._connection.broken = True
            if fault == "answer lost":
                place.operate(name, arguments)
            elif fault == "done late":
                self._world.late.append((place, name, arguments))
            raise BrokenPipeError(fault)

        return call


class Machine:
    """A machine on which one agent at a time runs: its node, the connector and mover of its backend, and a minimal
    agent. The first machine has the endpoint's address."""

    grace = 0.0

    def __init__(self, world: Below, number: int, life: int = 1) -> None:
        self._world, self.number, self.life = world, number, life
        self.where, self.dead, self.closed = ENDPOINT, False, False
        self.serves: Place | None = None
        self.key = f"n{number}/{life}"
        node = described.Node(f"n{number}", f"n{number}", max_restarts=99)
        self.node = Node(Entry.of(node, self.key), world.settings)
        self.backend = StoreBackend(self, "job", clock=world.clock, mover=self if world.moves else None)
        self.operations = Operations(self.backend)
        self.threads: dict[str, Thread] = {}
        self.answers: list[tuple[str, Any, Exception | None]] = []
        self.watches_at, self.useless, self.known = 0.0, 0, object()
        self.rests_until = 0.0
        self.running = self.leaving = False
        self.stops_at: float | None = None
        self.frozen_until = 0.0
        self.step: Operation | Idle | None = None  # the last one that its node chose
        self.told: Any = None
        self.handed_over: bool | None = None
        self.closes_at = self.closes_by = 0.0
        self.node.begin(world.clock.now())

    # -- the connector, and the mover

    @property
    def place(self) -> Place | None:
        """The place to which this machine's connections lead."""
        return self._world.places.get(self.where)

    @property
    def hosts(self) -> bool:
        return self.place is not None and self.place.alive and self.place.host is self

    @property
    def listed(self) -> bool:
        return self.number == 0 or self._world.together

    def connect(self, aside: bool = False) -> Connection:
        self._world.pause(self)
        if self.closed or self.dead:
            raise RendezvousConnectionError("closed")
        places = (self._world.places.get(where) for where in (self.where, ENDPOINT))
        place = next((place for place in places if place is not None and place.alive), None)
        if place is None and self.listed:
            place = self._world.served(self.where if self._world.together else ENDPOINT, self)
        if place is None:
            raise RendezvousConnectionError("connection refused")
        self.where = place.where
        return Connection(self._world, self, place)

    def close(self) -> None:
        self.closed = True
        self._world.ends(self)

    def serve(self) -> tuple[str, Connection] | None:
        if self.closed or self.dead:
            return None
        if self.serves is None and (takes := self._world.random.choice(self._world.serving)):
            nowhere = Connection(self._world, self, None)
            self._world.pause(self, Wait(nowhere, "", self._world.clock.now() + takes, threading.Event()))
        if self.serves is None:
            self.serves = self._world.served(self.free_address(), self)
        return self.serves.where, Connection(self._world, self, self.serves)

    def free_address(self) -> str:
        """Return the address at which this machine would serve a store now."""
        free = self.listed and not (ENDPOINT in self._world.places and self._world.places[ENDPOINT].alive)
        return ENDPOINT if free else f"127.0.0.{self.number + 2}:{len(self._world.places) + 2}"

    @property
    def starts_a_store(self) -> bool:
        """Whether this machine has begun to start a store that does not answer yet."""
        waits = (it.waits_for for it in self._world.threads if it.owner is self)
        return any(wait is not None and not wait.key for wait in waits)

    def stop_serving(self, unless: str = "") -> None:
        if self.serves is not None and self.serves.where != unless:
            self.serves.alive, self.serves = False, None

    def moved(self, where: str) -> None:
        stays = self.place is not None and self.place.alive and self.place.kept
        must(not stays, f"{self.key} leaves a store that stays, for {where}")
        self.where = where
        if self.serves is not None and self.serves.where != where:
            self.serves = None

    def connected_to(self, where: str) -> bool:
        return self.where == where

    def at_the_endpoint(self) -> Iterator[Connection]:
        self._world.pause(self)
        place = self._world.places.get(ENDPOINT)
        if self.where != ENDPOINT and not self.closed and not self.dead:
            if self.listed and (place is None or not place.alive):
                place = self._world.served(ENDPOINT, self)
            if place is not None and place.alive:
                yield Connection(self._world, self, place)
                return
        yield Connection(self._world, self, None)

    # -- the agent

    @property
    def acts(self) -> bool:
        return not self.dead and not self.closed

    def looks(self) -> None:
        """Let the agent react to its node's state."""
        now = self._world.clock.now()
        node = self.node
        if self.leaving:
            self._leaves()
            return
        if node.membership.running and not self.running:
            self.running = True
        if self.running and self.stops_at is None and node.verdict(now) is not None:
            self.stops_at = now + self._world.random.choice([0.0, 0.3, 1.5])
        if self.stops_at is not None and now >= self.stops_at:
            self.running, self.stops_at = False, None
            node.begin(now)
            self.wants()
        elif not self.running and not node.membership.joins and node.state is not None:
            self.wants()

    def wants(self) -> None:
        self.node.want(RendezvousStoreInfo(f"127.0.0.{self.number + 2}", 7000 + self.life))

    def _leaves(self) -> None:
        """Leave as a handler does at its end, one step after another: retire, hand over, close."""
        for fault in self.node.pop_settled():
            if self.told is not None and fault[0] is self.told:
                if self._world.moves and self.hosts and self.handed_over is None:
                    self.handed_over = False
                    self.told = self.node.hand_over(3.0)
                else:
                    self.told = None
                    now = self._world.clock.now()
                    self.closes_at = now + (self._world.random.choice([0.0, 5.0]) if self.handed_over is False else 0.0)
        now, has_left = self._world.clock.now(), self.told is None and "node" not in self.threads
        if now >= (self.closes_at if has_left else self.closes_by):
            self.running = False
            self.backend.close()


class Below:
    """The world. `run` draws random events and checks the invariants.

    Args:
        events: which events may happen; "crash host" happens to a machine that hosts a store. A store that can be
            handed over is in its host's memory, so "older" happens only to other stores.
        most: how many events happen.
        moves: whether the store can be handed over.
        least: `min_nodes`.
        serving: how many seconds it may take to serve a store.
        together: whether all nodes are on the endpoint's machine. They then start a lost store where it was.
    """

    def __init__(
        self,
        seed: int,
        machines: int = 3,
        events: Collection[str] = EVENTS,
        most: int = 6,
        moves: bool = True,
        least: int = 1,
        serving: Sequence[float] = (0.0,),
        together: bool = False,
    ) -> None:
        assert not (moves and "older" in events)
        self.random = random.Random(seed)
        self.clock = FakeClock()
        timeout = RendezvousTimeout(join=1e9, last_call=1.0, close=2.0)
        self.settings = RendezvousSettings("job", least, machines, timeout, 1.0, 5)
        self.moves = moves
        self.serving = serving
        self.together = together
        self.places: dict[str, Place] = {}
        self.late: list[tuple[Place, str, tuple[Any, ...]]] = []
        self.threads: list[Thread] = []
        self._back = threading.Semaphore(0)
        self._known: dict[threading.Thread, Thread] = {}
        self._ended = False
        self.lost_data = False
        self.rounds: set[RoundId] = set()
        self.ended_at: dict[str, float] = {}  # the time at which an agent ended, by its key
        self.story: list[str] = []
        self._events = list(events)
        self._left = most
        self._serial = 0
        self.machines = [Machine(self, number) for number in range(machines)]

    # -- threads

    def pause(self, machine: Machine, wait: Wait | None = None, following: tuple[str, str] = ("", "")) -> str:
        """Block the thread until the world's next step for it. `following` is the operation that the thread performs
        then, and its key. Returns the operation's fault; empty for none."""
        if self._ended:  # this thread still releases what it holds
            raise SystemExit
        mine = threading.current_thread()
        known = self._known.get(mine)
        if known is None:  # the thread of a pointer
            KEEPERS.add(mine)
            known = self._known[mine] = Thread(machine, "keeper")
            known.waits_for, known.next = wait, following
            self.threads.append(known)
        else:
            known.waits_for, known.next = wait, following
            self._back.release()
        known.go.acquire()
        if self._ended or machine.dead:
            raise SystemExit
        fault, known.fault = known.fault, ""
        return fault

    def _let(self, thread: Thread) -> None:
        thread.go.release()
        while not self._back.acquire(timeout=0.002) and thread.thread.is_alive():
            pass
        if not thread.thread.is_alive():
            self._back.acquire(blocking=False)  # it may have come back and ended since the timeout
            self._drop(thread)
        while any(it.name == "rendezvous-pointer" and it not in KEEPERS for it in threading.enumerate()):
            time.sleep(0.0002)  # a new thread runs to its first step

    def _drop(self, thread: Thread) -> None:
        if thread in self.threads:
            self.threads.remove(thread)

    def _begin(self, machine: Machine, kind: str, call: Callable[[], Any]) -> None:
        def run() -> None:
            thread.go.acquire()
            answer, fault = None, None
            try:
                if self._ended or machine.dead:
                    raise SystemExit
                answer = call()
            except SystemExit:
                self._drop(thread)
                self._back.release()
                return
            except Exception as error:  # noqa: BLE001 - as the driver does
                fault = error
            machine.answers.append((kind, answer, fault))
            del machine.threads[kind]
            self._drop(thread)
            self._back.release()

        made = threading.Thread(target=run, daemon=True)
        thread = Thread(machine, kind)
        thread.thread = made
        self._known[made] = thread
        machine.threads[kind] = thread
        self.threads.append(thread)
        made.start()

    def end(self) -> None:
        self._ended = True
        for machine in self.machines:
            machine.closed = True
        threads = [*self.threads]
        for thread in threads:
            thread.go.release()
        for thread in threads:  # the next test must not be charged with their SystemExit
            thread.thread.join(10)

    def _may_go(self, thread: Thread) -> bool:
        wait, now = thread.waits_for, self.clock.now()
        owner = thread.owner
        if owner.dead or owner.frozen_until > now:
            return owner.dead
        if wait is None or wait.closed.is_set() or wait.connection.broken or now >= wait.until:
            return True
        place = wait.connection.place
        return place is not None and (not place.alive or place.store.check([wait.key]))

    # -- the world

    def served(self, where: str, host: Machine) -> Place:
        self.lost_data = self.lost_data or (where == ENDPOINT and any(place.alive for place in self.places.values()))
        self.places[where] = Place(where, host)
        self.story.append(f"{self.clock.now():.2f} {host.key} serves {where}")
        return self.places[where]

    def until(self, holds: Callable[[], object], most: float = 60.0) -> None:
        """Run without events until `holds` returns true, which must be within `most` seconds."""
        end = self.clock.now() + most
        while not holds():
            self._must(self.clock.now() < end, "the story does not continue")
            self._step()

    def let(self, event: str, machine: Machine) -> None:
        """Let an event happen to this machine now."""
        assert self._happens_to(event, machine), event

    def about_to(self, machine: Machine, part: str) -> Thread | None:
        """Return the machine's thread whose next operation is on a key that contains `part`."""
        return next((it for it in self.threads if it.owner is machine and part in it.next[1]), None)

    def run(
        self,
        quiet: float = 60.0,
        calm: float = 0.0,
        begins: Callable[[Below], None] = lambda world: None,
        store_survives: bool = False,
    ) -> None:
        """Run until all events have happened, and for `quiet` seconds after that. Then all live nodes must be in one
        round. If nothing answers at the endpoint any more, this applies only to nodes whose store still runs, unless
        `store_survives`.

        Nothing happens in the first `calm` seconds. `begins` is called first: with `until` and `let`, it brings the
        world to the situation in which random events begin.
        """
        try:
            begins(self)
            steps, quiet_since = 0, None
            while quiet_since is None or self.clock.now() < quiet_since + quiet:
                steps += 1
                self._must(steps < MOST_STEPS, "no end")
                if self.clock.now() >= calm and self._left and self.random.random() < 0.02:
                    self._happens()
                if not self._left and quiet_since is None and not self.late:
                    quiet_since = self.clock.now()
                if self.late and self.random.random() < 0.02:
                    place, name, arguments = self.late.pop(self.random.randrange(len(self.late)))
                    if place.alive and name != "multi_get":
                        self.story.append(f"{self.clock.now():.2f} {name} {arguments} is done late")
                        place.operate(name, arguments)
                self._step()
            self._check_settled(store_survives)
        finally:
            self.end()

    def _step(self) -> None:
        able = sorted(filter(self._may_go, self.threads), key=lambda thread: thread.name)
        idle = [m for m in self.machines if m.acts and self._has_work(m)]
        choice = self.random.randrange(len(able) + len(idle)) if able or idle else -1
        if choice < 0:
            self._time_passes()
        elif choice < len(able):
            self._let(able[choice])
        else:
            self._continue(idle[choice - len(able)])

    def _time_passes(self) -> None:
        now = self.clock.now()
        times = [m.rests_until for m in self.machines if m.acts]
        times += [t.waits_for.until for t in self.threads if t.waits_for is not None]
        due = min((time for time in times if time > now), default=now + 0.25)
        self.clock.advance(min(max(due - now, 0.01), 0.25))

    def _has_work(self, machine: Machine) -> bool:
        now = self.clock.now()
        if machine.frozen_until > now:
            return False
        if machine.answers:
            return True
        stops = machine.stops_at is not None and now >= machine.stops_at
        return "node" not in machine.threads and (stops or now >= machine.rests_until)

    def _continue(self, machine: Machine) -> None:
        while machine.answers:
            self._hears(machine, *machine.answers.pop(0))
        machine.looks()
        self._check_groups()
        if not machine.acts or "node" in machine.threads:
            return
        now, node = self.clock.now(), machine.node
        step = machine.step = node.next(now)
        machine.looks()
        if not machine.acts:
            return
        if isinstance(step, Idle):
            machine.rests_until = max(step.until, now + 0.01)
            self._watches(machine, now)
            return
        if isinstance(step, WriteState):
            what = f"round {step.state.round.number} {'open' if step.state.open else 'over'} {[*step.state.seats.keys]}"
            self.story.append(f"{now:.2f} {machine.key} writes {what}")
        self._begin(machine, "node", partial(self._performed, machine, step))

    def _performed(self, machine: Machine, operation: Operation) -> Any:
        known = self._serial
        answer = machine.operations.perform(operation)
        if isinstance(operation, HandOver):
            machine.handed_over = answer
            place = self.places[machine.where]
            record = place.record_of_its_move()  # a pointer to another store may have come first
            place.kept = not answer and record is not None and record not in self.places
        if isinstance(operation, WriteState) and answer and answer[2] and not self.lost_data:
            serial = answer[0].serial
            self._must(serial >= known, f"{machine.key} has written {serial} after {known}")
            self._serial = max(self._serial, serial)
            self._check_seats(answer[0])
        return answer

    def _hears(self, machine: Machine, kind: str, answer: Any, fault: Exception | None) -> None:
        now, node = self.clock.now(), machine.node
        if kind == "node" and fault is None:
            node.answered(answer, now)
        elif kind == "node":
            must(not isinstance(fault, Violation), str(fault))
            assert fault is not None
            node.broke(fault, now)
        elif fault is not None:
            machine.watches_at = now + 1.0
        elif answer:
            machine.useless = (
                machine.useless + 1 if node.token == machine.known else 0
            )  # since the previous notification
            machine.known = node.token
            machine.watches_at = now + min(0.01 * machine.useless, 1.0)
            if kind == "state":
                node.state_changed()
            node.roster_changed()

    def _watches(self, machine: Machine, now: float) -> None:
        """Run the waits that the driver's threads run while a node rests."""
        node, backend = machine.node, machine.backend
        if node.registered is None or now < machine.watches_at:
            return
        if "state" not in machine.threads:
            self._begin(machine, "state", partial(backend.wait_for_state, node.token, 30.0))
        if node.wants_roster and "roster" not in machine.threads:
            self._begin(machine, "roster", partial(backend.wait_for_roster, 30.0, node.lacking))

    def ends(self, machine: Machine) -> None:
        """Its stores end with it."""
        self.ended_at.setdefault(machine.key, self.clock.now())
        self.lost_data = self.lost_data or any(place.alive and place.host is machine for place in self.places.values())
        for place in self.places.values():
            place.alive = place.alive and place.host is not machine

    # -- events

    def _happens(self) -> None:
        event = self.random.choice(self._events)
        machine = self.random.choice(self.machines)
        if event.endswith(" host"):
            machine = next((machine for machine in self.machines if machine.hosts), machine)
        self._left -= self._happens_to(event, machine)

    def _happens_to(self, event: str, machine: Machine) -> bool:
        if not getattr(self, "_" + event.removesuffix(" host").replace(" ", "_"))(machine):
            return False
        self.story.append(f"{self.clock.now():.2f} {event}: {machine.key}")
        return True

    def _crash(self, machine: Machine) -> bool:
        if not machine.acts:
            return False
        machine.dead, machine.running = True, False
        self.ends(machine)
        return True

    def _restart(self, machine: Machine) -> bool:
        if machine.acts:
            return False
        self.machines[machine.number] = Machine(self, machine.number, machine.life + 1)
        return True

    def _fail(self, machine: Machine) -> bool:
        if machine.acts and machine.running and machine.stops_at is None and not machine.leaving:
            machine.node.fail(FAILURE)
            return True
        return False

    def _leave(self, machine: Machine) -> bool:
        if not machine.acts or machine.leaving or machine.node.state is None:
            return False
        machine.leaving, machine.running, machine.stops_at = True, False, None
        machine.told = machine.node.retire("SIGTERM")
        machine.closes_by = self.clock.now() + 20.0
        return True

    def _fault(self, machine: Machine, fault: str) -> bool:
        thread = machine.threads.get(self.random.choice(["node", "node", "state", "roster"]))
        if thread is None or thread.waits_for is not None or not machine.acts:
            return False
        thread.fault = fault
        return True

    def _answer_lost(self, machine: Machine) -> bool:
        return self._fault(machine, "answer lost")

    def _never_done(self, machine: Machine) -> bool:
        return self._fault(machine, "never done")

    def _done_late(self, machine: Machine) -> bool:
        return self._fault(machine, "done late")

    def _freeze(self, machine: Machine) -> bool:
        machine.frozen_until = self.clock.now() + self.random.choice([0.5, 3.0, 8.0])
        return machine.acts

    def _forget_data(self, before: dict[str, bytes]) -> bool:
        """Only a client that deletes keys can do this to a store that its host serves. If it deletes the record of a
        move before all nodes have read it, the job splits, so that does not happen here."""
        place = self.random.choice([*self.places.values()] or [None])
        if place is None or not place.alive or place.host.handed_over is not None:
            return False
        store = MemoryStore(timedelta(seconds=1))
        for key, value in before.items():
            store.set(key, value)
        place.store, place.lives, self.lost_data = store, place.lives + 1, True
        for thread in self.threads:
            if thread.waits_for is not None and thread.waits_for.connection.place is place:
                thread.waits_for.connection.broken = True
        return True

    def _forget(self, machine: Machine) -> bool:
        return self._forget_data({})

    def _older(self, machine: Machine) -> bool:
        """Restore the store's data of an earlier time."""
        place = self.random.choice([*self.places.values()] or [None])
        if place is None:
            return False
        if not place.before:
            place.before = place.data()
            return False
        return self._forget_data(place.before)

    # -- invariants

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"{what}\n{self._shown()}")

    def _check_groups(self) -> None:
        groups: dict[object, tuple[str, ...]] = {}
        for machine in self.machines:
            formed = machine.node.membership.formed
            if machine.acts and machine.running and formed is not None:
                members = tuple(formed.seats.keys)
                known = groups.setdefault(formed.round, members)
                self._must(known == members, f"two groups run round {formed.round}: {known}, {members}")

    def _check_seats(self, state: State) -> None:
        """Check that a round that has just formed seats no agent that ended long ago."""
        if state.round not in self.rounds:
            self.rounds.add(state.round)
            long_ago = self.clock.now() - 3 * self.settings.failure_timeout
            dead = [key for key in state.seats.keys if self.ended_at.get(key, long_ago) < long_ago]
            self._must(not dead, f"round {state.round} seats {dead}, long after its end")

    def _check_settled(self, store_survives: bool) -> None:
        here = [m for m in self.machines if m.acts and not m.leaving]
        finds_another = self.together or self.machines[0].acts  # at the endpoint
        if not finds_another and not store_survives:
            here = [m for m in here if m.place is not None and m.place.alive]
        rounds = {m.node.membership.round if m.running and m.stops_at is None else None for m in here}
        if not here or len(here) < self.settings.min_nodes:
            return
        self._must(len(rounds) == 1 and None not in rounds, "not in one round after all")
        formed = here[0].node.membership.formed
        assert formed is not None
        few = f"not in one round after all: {len(here)} live, and {len(formed.seats)} are in the round"
        self._must(len(formed.seats) == len(here), few)
        state = here[0].node.state
        assert state is not None
        self._must(self.lost_data or state.serial >= self._serial, f"{self._serial} was lost")

    def _shown(self) -> str:
        lines = [
            f"{m.key}: {'acts' if m.acts else 'gone'} at {m.where}, round {m.node.membership.round} "
            f"running={m.running} joins={m.node.membership.joins} leaving={m.leaving} leads={m.node.election.leading} "
            f"state={m.node.state and (m.node.state.round, m.node.state.open, m.node.state.seats.keys)} "
            f"outage={m.node.connection.outage} fault={m.node.fault} step={m.step} hosts={m.hosts}"
            for m in self.machines
        ]
        places = [f"{p.where}: {'alive' if p.alive else 'dead'}, of {p.host.key}" for p in self.places.values()]
        return "\n".join([*self.story[-60:], *lines, *places])

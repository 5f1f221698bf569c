"""A node whose operations run synchronously, one after another, on a memory backend in which the test can inject
faults."""

from __future__ import annotations

from elastic_testing import FakeClock, MemoryBackend, SharedMemory

from elastic_core.interfaces import node as described
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.rendezvous.codec import decoded_entry, decoded_state, encoded_state
from elastic_core.rendezvous.driver import Operations
from elastic_core.rendezvous.effects import Idle
from elastic_core.rendezvous.model import Entry, State
from elastic_core.rendezvous.node import Node
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout

WHERE = RendezvousStoreInfo("127.0.0.1", 1234)
MOST = 100  # operations in a row; a node that needs more is in a busy loop


def stored(memory):
    """The state in the store."""
    return State() if memory.state is None else decoded_state(memory.state[0])


def write(memory, change):
    """Change the state as another client does."""
    backend = MemoryBackend(memory)
    state, token = backend.get_state() or (encoded_state(State()), None)
    assert backend.set_state(encoded_state(change(decoded_state(state))), token)[2]


def meet(*nodes):
    """Let these nodes join, and hear of each other and of the round."""
    for one in nodes:
        one.join()
    for one in nodes:
        one.hear()


class OneNode:
    """Attributes:
    node: the state machine.
    backend: its connection; a test can make it unreachable.
    faults: exceptions by operation class; such an operation raises instead of running.
    asked: the classes of the operations that the node requested, in order.
    rest: the last `Idle` that `next` returned.
    """

    def __init__(self, memory=None, clock=None, name="a", min_nodes=1, max_nodes=1, connect=None, **timeouts):
        self.memory = memory or SharedMemory()
        self.clock = clock or FakeClock()
        self.backend = MemoryBackend(self.memory)
        timeout = RendezvousTimeout(**{"last_call": 5.0, **timeouts})
        self.settings = RendezvousSettings(
            "job", min_nodes, max_nodes, timeout, connect_timeout=connect, endpoint="here:1"
        )
        self.key = f"{name}/1"
        self.node = Node(Entry.of(described.Node(name, max_restarts=3), self.key), self.settings)
        self.operations = Operations(self.backend)
        self.faults = {}
        self.asked = []
        self.rest = None

    def join(self):
        self.node.begin(self.clock.now())
        self.node.want(WHERE)
        return self.settle()

    def step(self):
        """Run the next operation and pass the answer to the node. Returns the operation, or `Idle` if there is none."""
        step = self.node.next(self.clock.now(), self.memory.vacant)
        if isinstance(step, Idle):
            self.rest = step
            return step
        self.asked.append(type(step))
        try:
            if type(step) in self.faults:
                raise self.faults[type(step)]
            answer = self.operations.perform(step)
        except Exception as error:  # noqa: BLE001 - as the driver does
            self.node.broke(error, self.clock.now())
        else:
            self.node.answered(answer, self.clock.now())
        return step

    def settle(self):
        """Run everything that is due now. Returns the operations in order."""
        done = []
        while not isinstance(step := self.step(), Idle):
            done.append(step)
            assert len(done) < MOST, f"expected an end, found {done[-5:]}"
        return done

    def run(self, seconds):
        """Let time pass without news; the node acts only when its timers are due. Returns the operations in order."""
        until, done = self.clock.now() + seconds, self.settle()
        while self.rest.until <= until:
            self.clock.advance(max(self.rest.until - self.clock.now(), 0.0))
            done += self.settle()
            assert len(done) < MOST * (1 + seconds), f"expected an end, found {done[-5:]}"
        self.clock.advance(max(until - self.clock.now(), 0.0))
        return done

    def hear(self):
        """Deliver the backend's notification that anything may have changed."""
        self.node.state_changed()
        self.node.roster_changed()
        return self.settle()

    def write(self, change):
        write(self.memory, change)

    @property
    def state(self):
        return stored(self.memory)

    @property
    def members(self):
        """The keys of the members of the last round, in rank order."""
        return [seat.key for seat in self.state.seats]

    @property
    def entries(self):
        """The nodes' entries in the store, by key."""
        return {key: decoded_entry(item.entry) for key, item in self.memory.entries.items()}

    @property
    def notes(self):
        return [note.event for note in self.node.pop_log_lines()]

"""A job whose nodes are real handlers with threads, over a memory backend that can be made unreachable."""

from __future__ import annotations

import threading
from datetime import timedelta

from elastic_testing import Background, MemoryBackend, SharedMemory
from one_node import stored, write

from elastic_core.builtin import MemoryStore
from elastic_core.errors import ProcessFailure
from elastic_core.interfaces.handler import RendezvousStoreInfo
from elastic_core.interfaces.node import Node
from elastic_core.rendezvous import DynamicRendezvousHandler, RendezvousSettings, RendezvousTimeout, RoundStores
from elastic_core.rendezvous.driver import Patience
from elastic_core.rendezvous.round_stores import PrefixedStores

LONG = 60.0


class HangingBackend(MemoryBackend):
    """Calls block while `hold` is cleared; `hung` is set when the first one blocks. `hosting`: the value of
    `hosts_store`."""

    def __init__(self, memory):
        super().__init__(memory)
        self.hold = threading.Event()
        self.hold.set()
        self.hung = threading.Event()
        self.hosting = False

    @property
    def hosts_store(self):
        return self.hosting

    def get_state(self):
        self._answers()
        return super().get_state()

    def set_state(self, state, token=None):
        self._answers()
        return super().set_state(state, token)

    def beat(self, key, leading, look):
        self._answers()
        return super().beat(key, leading, look)

    def withdraw(self, key):
        self._answers()
        super().withdraw(key)

    def _answers(self):
        if not self.hold.is_set():
            self.hung.set()
            self.hold.wait(60)


class Job:
    """All nodes of a job in one process, by name. A slow node is not considered lost, unless the test passes a small
    `attempts` or its own `clock`. A long `patience` shows that a call did not wait that long, however slow the machine
    is; a short one saves time."""

    def __init__(
        self, min_nodes=1, max_nodes=2, interval=0.2, attempts=150, clock=None, patience=Patience(), **timeouts
    ):
        self.memory = SharedMemory()
        self.store = MemoryStore(timedelta(seconds=LONG))
        self.bounds = (min_nodes, max_nodes)
        self.beats = (interval, attempts)
        self.timeout = RendezvousTimeout(**{"join": LONG, "last_call": 0.3, **timeouts})
        self.clock = clock
        self.patience = patience
        self.handlers = {}
        self.backends = {}

    def backend(self):
        return HangingBackend(self.memory)

    def node(self, name, max_restarts=3, stores=None):
        backend = self.backend()
        handler = DynamicRendezvousHandler(
            backend,
            RendezvousSettings("job", *self.bounds, self.timeout, *self.beats),
            Node(name, host=name, max_restarts=max_restarts),
            stores or PrefixedStores(self.store, "job", "127.0.0.1"),
            self.clock,
            patience=self.patience,
        )
        self.handlers[name], self.backends[name] = handler, backend
        return handler

    def form(self, names):
        """Returns the round in which all these nodes take part, by name."""
        for name in names:
            if name not in self.handlers:
                self.node(name)
        calls = {name: Background(self.handlers[name].next_rendezvous) for name in names}
        return {name: call.result() for name, call in calls.items()}

    @property
    def state(self):
        return stored(self.memory)

    def write(self, change):
        write(self.memory, change)

    def key(self, name):
        return next(key for key in self.memory.entries if key.startswith(f"{name}/"))

    def heal(self):
        """Let the handlers reach the store, so that they can leave."""
        for backend in self.backends.values():
            backend.hold.set()
            backend.reachable = True
            backend.hosting = False

    def end(self):
        self.heal()
        for call in [Background(handler.shutdown) for handler in self.handlers.values()]:
            call.result()


def failure(rank=0):
    return {rank: ProcessFailure(0, 7, 1, message="ValueError: no", global_rank=rank)}


class FailingStores(RoundStores):
    """Fails to open the first store."""

    hosted_by_agent = True

    def __init__(self):
        self.reserved = 0
        self.released = 0

    def reserve(self):
        self.reserved += 1
        return RendezvousStoreInfo("127.0.0.1", 1000 + self.reserved)

    def open(self, name, host, is_host):
        if self.reserved == 1:
            raise OSError("no store today")
        return MemoryStore()

    def release(self):
        self.released += 1


def rendezvous_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("rendezvous-")}

"""A keeper that is turned by hand on a fake clock."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.interfaces.node import Node
from elastic_core.rendezvous.codec import decoded_state
from elastic_core.rendezvous.entry import entry_of
from elastic_core.rendezvous.keeper import Keeper
from elastic_core.rendezvous.settings import RendezvousSettings, RendezvousTimeout
from elastic_core.testing import FakeClock, MemoryBackend, SharedMemory


class OneNode:
    """A keeper, its clock and its backend."""

    def __init__(self, memory=None, clock=None, name="a", min_nodes=1, max_nodes=2, **timeouts):
        self.memory = memory or SharedMemory()
        self.clock = clock or FakeClock()
        self.backend = MemoryBackend(self.memory)
        self.settings = RendezvousSettings("job", min_nodes, max_nodes, RendezvousTimeout(**timeouts))
        self.entry = entry_of(Node(name, host=name), f"{name}/1")
        self.views = []
        self.keeper = Keeper(self.backend, self.settings, self.entry, self.clock, self.views.append)

    def want(self, **changes):
        self.entry = replace(self.entry, **changes)
        self.keeper.want(self.entry)
        return self.keeper.turn()

    def run(self, seconds, step=0.25):
        """Turn when it is due, and with news whenever there is some."""
        until = self.clock.now() + seconds
        due = self.clock.now()
        while self.clock.now() < until:
            if self.keeper.view.token != self.memory.writes:
                self.keeper.state_changed()
                due = self.clock.now()
            if self.clock.now() >= due:
                due = self.keeper.turn()
            self.clock.advance(step)

    @property
    def state(self):
        return decoded_state(self.memory.state[0])

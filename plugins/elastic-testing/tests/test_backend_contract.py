"""The published fake passes BackendContract, whole and reduced to its two required methods; so does the wrapper that
the core puts around two methods."""

from __future__ import annotations

import pytest
from elastic_testing import BackendContract, MemoryBackend, SharedMemory

from elastic_core.clock import SystemClock
from elastic_core.interfaces.backend import RendezvousBackend
from elastic_core.rendezvous.store_backend import with_roster


class TestMemoryBackend(BackendContract):
    @pytest.fixture
    def backend(self):
        self.memory = SharedMemory()
        return MemoryBackend(self.memory)

    def peer(self, backend):
        return MemoryBackend(self.memory)

    def other_job(self, backend):
        return MemoryBackend(SharedMemory())

    def forget(self, backend):
        self.memory.forget()

    def lose(self, backend):
        backend.reachable = False


class TwoMethods(RendezvousBackend):
    """The fake, with only the methods that a backend needs.

    Attributes:
        returns_state: whether `set_state` returns the stored state.
    """

    def __init__(self, memory, returns_state=True):
        self.whole = MemoryBackend(memory)
        self.returns_state = returns_state

    @property
    def name(self):
        return "two methods"

    def get_state(self):
        return self.whole.get_state()

    def set_state(self, state, token=None):
        answer = self.whole.set_state(state, token)
        return answer if self.returns_state else None


class TestTwoMethods(BackendContract):
    returns_state = True

    @pytest.fixture
    def backend(self):
        self.memory = SharedMemory()
        return TwoMethods(self.memory, self.returns_state)

    def peer(self, backend):
        return TwoMethods(self.memory, self.returns_state)

    def lose(self, backend):
        backend.whole.reachable = False

    def forget(self, backend):
        self.memory.forget()


class TestTwoMethodsReturningNone(TestTwoMethods):
    returns_state = False


class TestRosterOverTwoMethods(BackendContract):
    @pytest.fixture
    def backend(self):
        self.memory = SharedMemory()
        return self.peer(None)

    def peer(self, backend):
        return with_roster(TwoMethods(self.memory), SystemClock())

    def spoil(self, backend):
        self.memory.state = (b"hello", 1)

    def forget(self, backend):
        self.memory.forget()

"""For tests, of the core and of plugins: the published fakes, where time or failure must be controlled; and contracts,
by which what a plugin brings proves itself."""

from elastic_core.testing.backend import MemoryBackend, SharedMemory
from elastic_core.testing.clock import FakeClock
from elastic_core.testing.observer import RecordingObserver
from elastic_core.testing.rounds import FakeRounds, round_info
from elastic_core.testing.store import StoreContract
from elastic_core.testing.workers import FakeWorkers
from elastic_core.testing.world import World, WorldNode

__all__ = [
    "FakeClock",
    "FakeRounds",
    "FakeWorkers",
    "MemoryBackend",
    "RecordingObserver",
    "SharedMemory",
    "StoreContract",
    "World",
    "WorldNode",
    "round_info",
]

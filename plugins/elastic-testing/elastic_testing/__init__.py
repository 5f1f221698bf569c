"""For tests, of the core and of plugins. Neither pytest nor torch is imported here; the contracts are run by pytest.

Contracts, by which what a plugin brings proves itself in about ten lines; each says what it is to be given:

- `BackendContract`: a rendezvous backend, of two methods or a `RosterBackend`
- `StoreContract`: a key-value store
- `WatchdogContract`: a watchdog, with timers or without
- `HealthContract`: a health endpoint
- `StarterContract`, `RankPolicyContract`, `EventHandlerContract`, `HealthCheckContract`: a worker starter, a rank
  policy, an event handler, a health check

Fakes, where time or failure must be controlled:

- `FakeClock`: is told to go on
- `World`, `WorldNode`: a job of hundreds of nodes in one thread, in which everything can go wrong
- `MemoryBackend`, over a `SharedMemory`: can be out of reach, and lose answers
- `FakeAgentView`: what a health endpoint looks at

What is installed, made by its name as the agent makes it, for the contracts: `installed_store`, `installed_backend`,
`installed_watchdog`, `installed_health_endpoint`; and `rendezvous_parameters`, what a backend's factory is given.

And for what blocks, or comes true by itself: `Background`, `eventually`.

`elastic_testing.campaign` runs real agents and workers over a backend or plugin through faults drawn by seed, and
reads afterwards what may not be; `elastic_testing.machines` makes machines of network name spaces for it.
"""

import sys

if "pytest" in sys.modules:  # whose failed contract is to show what was found
    sys.modules["pytest"].register_assert_rewrite(
        *(f"elastic_testing.{contract}" for contract in ("health", "small_contracts", "store", "watchdog")),
        "elastic_testing.backend_contract",
        *(f"elastic_testing.{part}_promises" for part in ("roster", "state")),
    )

from elastic_testing.backend_contract import BackendContract
from elastic_testing.fakes import FakeAgentView, FakeClock, MemoryBackend, SharedMemory, StateOnlyBackend
from elastic_testing.health import HealthContract
from elastic_testing.installed import (
    installed_backend,
    installed_health_endpoint,
    installed_store,
    installed_watchdog,
    rendezvous_parameters,
)
from elastic_testing.small_contracts import (
    EventHandlerContract,
    HealthCheckContract,
    RankPolicyContract,
    StarterContract,
)
from elastic_testing.store import StoreContract
from elastic_testing.waiting import Background, eventually
from elastic_testing.watchdog import WatchdogContract
from elastic_testing.world import World, WorldNode

__all__ = [
    "BackendContract",
    "Background",
    "EventHandlerContract",
    "FakeAgentView",
    "FakeClock",
    "HealthCheckContract",
    "HealthContract",
    "MemoryBackend",
    "RankPolicyContract",
    "SharedMemory",
    "StarterContract",
    "StateOnlyBackend",
    "StoreContract",
    "WatchdogContract",
    "World",
    "WorldNode",
    "eventually",
    "installed_backend",
    "installed_health_endpoint",
    "installed_store",
    "installed_watchdog",
    "rendezvous_parameters",
]

"""Test utilities for the core and plugins. This package imports neither pytest nor torch; pytest runs the contracts.

Contracts are test classes for a plugin's components. A plugin uses one in about ten lines:

- `BackendContract`: a rendezvous backend with two methods, or a `RosterBackend`
- `StoreContract`: a key-value store
- `WatchdogContract`: a watchdog, with or without timers
- `HealthContract`: a health endpoint
- `StarterContract`, `RankPolicyContract`, `EventHandlerContract`, `HealthCheckContract`: a worker starter, a rank
  policy, an event handler, a health check

Fakes give a test control over time and failures:

- `FakeClock`: a clock that the test advances
- `World`, `WorldNode`: a simulated job of hundreds of nodes in one thread, with all kinds of faults
- `MemoryBackend`, with its data in a `SharedMemory`: an in-memory backend that a test can make unreachable or make
  lose replies
- `StateOnlyBackend`: an in-memory backend with only the two required methods
- `FakeAgentView`: the agent, as seen by a health endpoint

`installed_store`, `installed_backend`, `installed_watchdog` and `installed_health_endpoint` create installed components
by name, in the same way as the agent. `rendezvous_parameters` creates the argument of a backend's factory.

`Background` runs blocking calls, and `eventually` waits for a condition.

`elastic_testing.campaign` runs real agents and workers, injects faults drawn from a seed, and then checks invariants.
`elastic_testing.machines` uses network namespaces to simulate the campaign's machines.
"""

import sys

if "pytest" in sys.modules:  # makes pytest show the values in failed assertions of the contracts
    _asserting = "backend_contract health roster_promises small_contracts state_promises store watchdog"
    sys.modules["pytest"].register_assert_rewrite(*(f"elastic_testing.{name}" for name in _asserting.split()))

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
    NoticeContract,
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
    "NoticeContract",
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

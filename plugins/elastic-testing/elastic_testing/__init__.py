"""Test utilities for the core and plugins. This package imports neither pytest nor torch; pytest runs the contracts.

Contracts, such as `BackendContract`, are test classes for a plugin's components. Fakes, such as `FakeClock` and
`World`, give a test control over time and failures. `installed_store` and similar functions create installed components
by name, in the same way as the agent. `Background` runs blocking calls, and `eventually` waits for a condition.

`elastic_testing.campaign` runs real agents and workers, injects faults drawn from a seed, and then checks invariants.
`elastic_testing.machines` uses network namespaces to simulate the campaign's machines.
"""

import sys

if "pytest" in sys.modules:  # makes pytest show the values in failed assertions of the contracts
    _asserting = "backend_contract health notifications roster_promises small_contracts state_promises store watchdog"
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
from elastic_testing.notifications import NotificationContract
from elastic_testing.small_contracts import (
    CommandContract,
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
    "CommandContract",
    "EventHandlerContract",
    "FakeAgentView",
    "FakeClock",
    "HealthCheckContract",
    "NoticeContract",
    "NotificationContract",
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

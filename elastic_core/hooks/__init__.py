"""The names that a plugin imports: the marker for its hooks, and the records that its hooks return.

`elastic_core.hooks.spec` describes every hook, each with a complete plugin as an example.
"""

from __future__ import annotations

from elastic_core.hooks.records import (
    CommandRecord,
    HealthCheckRecord,
    HealthEndpointRecord,
    NoticeRecord,
    Option,
    RankPolicyRecord,
    Record,
    RendezvousBackendRecord,
    StoreRecord,
    WatchdogRecord,
    WorkerStarterRecord,
)
from elastic_core.hooks.spec import hookimpl

__all__ = [
    "CommandRecord",
    "HealthCheckRecord",
    "HealthEndpointRecord",
    "NoticeRecord",
    "Option",
    "RankPolicyRecord",
    "Record",
    "RendezvousBackendRecord",
    "StoreRecord",
    "WatchdogRecord",
    "WorkerStarterRecord",
    "hookimpl",
]

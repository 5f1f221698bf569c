"""The kinds of records there are: the hook that brings each, what people call it, and which of ours lives where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic_core.hooks.records import (
    HealthEndpointRecord,
    Record,
    RendezvousBackendRecord,
    StoreRecord,
    WatchdogRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Kind:
    """One kind of record. `flag` is where its name is selected; `homes` maps names of ours to distributions."""

    record: type[Record]
    hook: str
    noun: str
    flag: str
    homes: Mapping[str, str] = field(default_factory=dict)


KINDS: tuple[Kind, ...] = (
    Kind(
        RendezvousBackendRecord,
        "elastic_rendezvous_backends",
        "rendezvous backend",
        "--rdzv-backend",
        {
            "c10d": "elastic-c10d",
            "tcp": "elastic-c10d",
            "file": "elastic-c10d",
            "static": "elastic-c10d",
            "etcd": "elastic-etcd",
            "etcd-v2": "elastic-etcd",
            "etcd-v3": "elastic-etcd",
            "etcd-legacy": "elastic-etcd-legacy",
        },
    ),
    Kind(
        StoreRecord,
        "elastic_stores",
        "store",
        "store",
        {"tcp": "elastic-c10d", "file": "elastic-c10d", "hash": "elastic-c10d", "etcd": "elastic-etcd"},
    ),
    Kind(WatchdogRecord, "elastic_watchdogs", "watchdog", "--watchdog", {"file": "elastic-file-timer"}),
    Kind(
        HealthEndpointRecord,
        "elastic_health_endpoints",
        "health endpoint",
        "--health",
        {"http": "elastic-http-health"},
    ),
)


def kind_of(record: type[object]) -> Kind:
    """The kind that a record class stands for. Raises KeyError for any other class."""
    by_record: dict[type[object], Kind] = {kind.record: kind for kind in KINDS}
    return by_record[record]

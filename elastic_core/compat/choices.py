"""What is used if nothing is chosen, and which of our distributions brings which name: the names are those that users
of torchrun expect, and none of them is special anywhere else in the core."""

from __future__ import annotations

BACKEND = "c10d"
"""The rendezvous backend of several nodes, and of an endpoint."""

BACKEND_WITH_MASTER = "static"
"""The rendezvous backend of a fixed number of nodes that are given a master address and no endpoint."""

HEALTH_ENDPOINT = "http"
"""The health endpoint of `--health-port`."""

WARM_STARTER = "warm"
"""The worker starter of `--warm-start`."""

BACKEND_HOMES = {
    **dict.fromkeys(("c10d", "tcp", "file", "static"), "elastic-c10d"),
    **dict.fromkeys(("etcd", "etcd-v2", "etcd-v3"), "elastic-etcd"),
    "etcd-legacy": "elastic-etcd-legacy",
}
STORE_HOMES = {**dict.fromkeys(("tcp", "file", "hash"), "elastic-c10d"), "etcd": "elastic-etcd"}
WATCHDOG_HOMES = {"file": "elastic-file-timer"}
HEALTH_HOMES = {"http": "elastic-http-health"}
STARTER_HOMES = {"warm": "elastic-warm"}
COMMAND_HOMES = {"doctor": "elastic-doctor"}

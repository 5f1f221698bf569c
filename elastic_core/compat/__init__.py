"""Provides compatibility with torch's launcher. The package replaces the launcher's modules and functions, supports
rendezvous backends that have only `get_state` and `set_state`, and turns stores into backends.

This module names the default plugins, which are the ones that torchrun users expect. It also names the distributions
that provide well-known plugins. No other module in the core treats these names specially."""

from __future__ import annotations

BACKEND = "c10d"
"""The rendezvous backend for multi-node jobs and for jobs with an endpoint."""

BACKEND_WITH_MASTER = "static"
"""The rendezvous backend for jobs with a fixed number of nodes, a master address and no endpoint."""

HEALTH_ENDPOINT = "http"
"""The health endpoint that `--health-port` selects."""

WARM_STARTER = "warm"
"""The worker starter that `--warm-start` selects."""

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
FLAG_HOMES = dict.fromkeys(
    ("notices", "notice_file", "notice_url", "notice_interval", "notice_endpoint"), "elastic-notices"
)

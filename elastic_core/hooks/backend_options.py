"""The options that all backends with dynamic rounds share, and their defaults. Plugins import this module when they are
loaded, so it must not import `elastic_core.rendezvous`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.hooks.records import Option

if TYPE_CHECKING:
    from elastic_core.clock import Duration

JOIN: Duration = 600.0
LAST_CALL: Duration = 5.0
CLOSE: Duration = 60.0
HEARTBEAT: Duration = 2.0
CONNECT: Duration = 60.0
KEEP_ALIVE_INTERVAL: Duration = 1.0
KEEP_ALIVE_MAX_ATTEMPT = 5

BACKEND_OPTIONS: tuple[Option, ...] = (
    Option(
        "join_timeout", float, JOIN, "time limit for a round to form while no other round is active", "seconds", above=0
    ),
    Option(
        "last_call_timeout",
        float,
        LAST_CALL,
        "how long to wait for more nodes after MIN nodes have joined",
        "seconds",
        least=0,
    ),
    Option("close_timeout", float, CLOSE, "how long members of the previous round have to rejoin", "seconds", above=0),
    Option(
        "heartbeat_timeout", float, HEARTBEAT, "time until a silent store is logged as an outage", "seconds", above=0
    ),
    Option("connect_timeout", float, CONNECT, "time limit for the store's first response", "seconds", above=0),
    Option("keep_alive_interval", float, KEEP_ALIVE_INTERVAL, "time between a node's heartbeats", "seconds", above=0),
    Option(
        "keep_alive_max_attempt",
        int,
        KEEP_ALIVE_MAX_ATTEMPT,
        "missed heartbeats after which a node is considered lost",
        least=2,
    ),
    Option("secret_file", str, None, "file with the shared signing secret; same as --rdzv-secret-file"),
)

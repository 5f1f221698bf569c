"""The settings of a rendezvous: bounds, timeouts and heartbeats."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from elastic_core.errors import ConfigurationError
from elastic_core.hooks.records import (
    BACKEND_OPTIONS,
    CLOSE,
    HEARTBEAT,
    JOIN,
    KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_MAX_ATTEMPT,
    LAST_CALL,
)
from elastic_core.interfaces.handler import check_job
from elastic_core.parsing import type_options
from elastic_core.support.sockets import hosts_of, reached_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastic_core.clock import Duration
    from elastic_core.hooks.records import Option
    from elastic_core.interfaces.handler import RendezvousParameters
    from elastic_core.interfaces.node import RankPolicy

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # no packet is ever sent to this address


def in_seconds(duration: timedelta | float) -> Duration:
    """Return the duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _as_timedelta(duration: timedelta | float) -> timedelta:
    try:
        return duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
    except OverflowError as error:
        raise ValueError(f"expected a timeout of at most {timedelta.max.days} days, found {duration} s") from error


class RendezvousTimeout:
    """How long each step may take. A timeout is a timedelta, as in torch, or a number of seconds.

    Args:
        join: how long a round may take to form, not counting the time during which another round runs.
        last_call: how long a new job waits for more nodes once `min_nodes` have joined.
        close: how long the members of an ended round may take to stop their workers and rejoin, before a round forms
            without them.
        heartbeat: how long the store may take to answer a heartbeat before an outage is logged.

    Raises:
        ValueError: a timeout is not above 0 (`last_call` may be 0).
    """

    def __init__(
        self,
        join: timedelta | float = JOIN,
        last_call: timedelta | float = LAST_CALL,
        close: timedelta | float = CLOSE,
        heartbeat: timedelta | float = HEARTBEAT,
    ) -> None:
        self.join = _as_timedelta(join)
        self.last_call = _as_timedelta(last_call)
        self.close = _as_timedelta(close)
        self.heartbeat = _as_timedelta(heartbeat)
        for name in ("join", "close", "heartbeat"):
            if getattr(self, name) <= timedelta():
                raise ValueError(f"expected a {name} timeout above 0 s, found {in_seconds(getattr(self, name)):g}")
        if self.last_call < timedelta():
            raise ValueError(f"expected a last_call timeout of 0 s or more, found {in_seconds(self.last_call):g}")


@dataclass(frozen=True)
class RendezvousSettings:
    """The settings of a rendezvous, which are the same on every node of the job.

    Args:
        keep_alive_interval: seconds between two heartbeats.
        keep_alive_max_attempt: how many heartbeats may be missed before a node is considered lost; at least 2.
        lease_ttl: see `RosterBackend.lease_ttl`.
        connect_timeout: how many seconds the store may take to answer for the first time; None means the join timeout.
        endpoint: the store's endpoint, for messages.
        join_option: the name of the option that sets the join timeout, for messages.
        rank_policy: a function that orders a round's nodes and never raises an exception; if None, nodes keep their
            ranks.

    Raises:
        ValueError: a setting is out of bounds.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: Duration = KEEP_ALIVE_INTERVAL
    keep_alive_max_attempt: int = KEEP_ALIVE_MAX_ATTEMPT
    lease_ttl: Duration | None = None
    connect_timeout: Duration | None = None
    endpoint: str = ""
    join_option: str = "join_timeout"
    rank_policy: RankPolicy | None = None

    def __post_init__(self) -> None:
        check_job(self.run_id, self.min_nodes, self.max_nodes)
        if self.keep_alive_interval <= 0:
            raise ValueError(f"expected a keep_alive_interval above 0 s, found {self.keep_alive_interval}")
        if self.keep_alive_max_attempt < 2:
            raise ValueError(f"expected a keep_alive_max_attempt of 2 or more, found {self.keep_alive_max_attempt}")

    @property
    def first_contact(self) -> tuple[Duration, str]:
        """The time limit for the store's first answer, in seconds, and the name of the option that sets the limit."""
        join = self.timeout.join.total_seconds()
        if self.connect_timeout is None or self.connect_timeout >= join:
            return join, self.join_option
        return self.connect_timeout, "connect_timeout"

    @property
    def failure_timeout(self) -> Duration:
        """The number of seconds without a heartbeat after which other nodes consider a node lost."""
        if self.lease_ttl is not None:
            return self.lease_ttl
        return self.keep_alive_interval * self.keep_alive_max_attempt


def settings_of(params: RendezvousParameters) -> RendezvousSettings:
    """Return the settings, with defaults. Raises a ConfigurationError that lists every invalid option."""
    known = options_of(params, BACKEND_OPTIONS)
    timeout = RendezvousTimeout(
        known["join_timeout"], known["last_call_timeout"], known["close_timeout"], known["heartbeat_timeout"]
    )
    return RendezvousSettings(
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        timeout,
        known["keep_alive_interval"],
        known["keep_alive_max_attempt"],
        connect_timeout=known["connect_timeout"],
        endpoint=params.endpoint,
        join_option="join_timeout" if params.get("timeout") is None else "timeout",
    )


def advertised_address(params: RendezvousParameters, places: Iterable[tuple[str, int]] | None = None) -> str:
    """Return the address that this node advertises. It is the value of `--local-addr` if that is set, or 127.0.0.1 for
    a job with one node. Otherwise, it is this machine's address on the route to the first of `places` that has a route.
    `places` lists hosts with ports (default: the endpoint's hosts). If there are no hosts, the default route is used.
    This function blocks while it looks up host names."""
    if params.local_addr:
        return params.local_addr
    if params.max_nodes == 1:
        return LOOPBACK
    if places is None:
        with contextlib.suppress(ConfigurationError):  # the endpoint has another form
            places = hosts_of(params.endpoint, _ANY_PORT)
    return reached_at(places or ())


def options_of(params: RendezvousParameters, options: Sequence[Option]) -> dict[str, Any]:
    """Return the values of these options, with defaults. Strings are converted to the options' types. Raises a
    ConfigurationError that lists every invalid option."""
    given = {option.name: params.get(option.name) for option in options}
    values, problems = type_options(options, given, "--rdzv-conf")
    if problems:
        raise ConfigurationError(*problems)
    return values

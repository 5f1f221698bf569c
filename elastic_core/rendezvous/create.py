"""From parameters to a handler: what a plugin's factory calls."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING, Any, cast

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.records import Option
from elastic_core.rendezvous.handler import DynamicRendezvousHandler, anonymous_node
from elastic_core.rendezvous.round_stores import PrefixedStores
from elastic_core.rendezvous.settings import (
    CLOSE,
    HEARTBEAT,
    JOIN,
    KEEP_ALIVE_INTERVAL,
    KEEP_ALIVE_MAX_ATTEMPT,
    LAST_CALL,
    RendezvousSettings,
    RendezvousTimeout,
)

if TYPE_CHECKING:
    from elastic_core.interfaces.backend import RendezvousBackend, RoundStores
    from elastic_core.interfaces.handler import RendezvousParameters
    from elastic_core.interfaces.store import Store

OPTIONS: tuple[Option, ...] = (
    Option("join_timeout", float, JOIN, "for a round to form; not counted while another round runs", "seconds"),
    Option(
        "last_call_timeout",
        float,
        LAST_CALL,
        "wait for more nodes of a new job once the least number is there",
        "seconds",
    ),
    Option("close_timeout", float, CLOSE, "for the members of an ended round to come back", "seconds"),
    Option("heartbeat_timeout", float, HEARTBEAT, "silence of the store before that is logged", "seconds"),
    Option("keep_alive_interval", float, KEEP_ALIVE_INTERVAL, "between two beats of a node", "seconds"),
    Option("keep_alive_max_attempt", int, KEEP_ALIVE_MAX_ATTEMPT, "beats that may be missing before a node is gone"),
)
"""The options that every backend of dynamic rounds takes."""


def settings_of(params: RendezvousParameters) -> RendezvousSettings:
    """The settings that the parameters hold; options that are not there have their defaults.

    Raises:
        ConfigurationError: a bound does not hold.
    """
    known = {option.name: _number(option, params.get(option.name)) for option in OPTIONS}
    try:
        timeout = RendezvousTimeout(
            known["join_timeout"], known["last_call_timeout"], known["close_timeout"], known["heartbeat_timeout"]
        )
        return RendezvousSettings(
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            timeout,
            known["keep_alive_interval"],
            int(known["keep_alive_max_attempt"]),
        )
    except ValueError as error:
        raise ConfigurationError(Problem("--rdzv-conf", str(error))) from error


def _number(option: Option, value: Any) -> float:
    kind = int if option.type is int else float
    try:
        number = kind(option.default if value is None else value)  # type: ignore[arg-type]  # or it is a TypeError
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return number
    wanted = "a whole number" if kind is int else "a number"
    raise ConfigurationError(Problem(f"--rdzv-conf: {option.name}", f"expected {wanted}, found {value!r}"))


def create_handler(
    store: Store | None, backend: RendezvousBackend, params: RendezvousParameters, stores: RoundStores | None = None
) -> DynamicRendezvousHandler:
    """A handler over `backend`, with the options of `params` (see `OPTIONS`).

    Args:
        store: what the rounds' stores are made of; None if `stores` gives every round one.

    Raises:
        ConfigurationError: a bound does not hold.
        ValueError: neither `store` nor `stores` is given.
    """
    node = params.node or anonymous_node()
    if stores is None and store is None:
        raise ValueError("expected a store, or an object that gives every round one, found neither")
    given = stores or PrefixedStores(
        cast("Store", store), params.run_id, params.local_addr or node.host or socket.gethostname()
    )
    return DynamicRendezvousHandler(backend, settings_of(params), node, given)

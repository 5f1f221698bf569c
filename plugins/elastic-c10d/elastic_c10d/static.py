"""The `static` backend, for a fixed number of nodes with given ranks. Rank 0 hosts the store at the master address."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_c10d.endpoint import Endpoint, parse_endpoint
from elastic_core.plugin import (
    ConfigurationError,
    Node,
    Problem,
    find_option,
    is_loopback,
    joined_host_port,
    means_this_machine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from elastic_core.plugin import RendezvousParameters, Settings

DEFAULT_PORT = 29500
RUN_ID = "none"
"""The run id of a static job without --rdzv-id. It need not be unique, because no other job uses the same address."""

_DIGITS = 10


def defaults(settings: Settings) -> Mapping[str, tuple[Any, str]]:
    """Return defaults for the endpoint, the run id, the node's rank and, in a multi-node job, the node's id. Each value
    is paired with its origin. The endpoint is derived from the master address and port."""
    host = (settings.master_addr or "127.0.0.1").removeprefix("[").removesuffix("]")
    port = DEFAULT_PORT if settings.master_port is None else settings.master_port
    rank, why = settings.node_rank, "the rank"
    if rank is None:
        written = find_option(settings.rdzv_conf, "rank") or ""
        if written.isdecimal() and len(written) < _DIGITS:
            rank, why = int(written), "the option rank"
        else:
            rank, why = 0, "torchrun's default; static gives every node a rank"
    found: dict[str, tuple[Any, str]] = {
        "rdzv_endpoint": (joined_host_port(host, port), "--master-addr and --master-port"),
        "rdzv_id": (RUN_ID, "the static backend needs none"),
        "node_rank": (rank, why),
    }
    if settings.nnodes.max > 1:  # two nodes with the same rank get the same name, and are detected
        found["node_id"] = (f"rank{rank}", "the rank")
    return found


def problems(settings: Settings) -> Iterator[Problem]:
    """Yield the problems in a static job's settings."""
    rank, nnodes = find_option(settings.rdzv_conf, "rank"), settings.nnodes
    if rank is not None and rank.lstrip("0") != str(settings.node_rank).lstrip("0"):
        message = f"rank={rank} contradicts --node-rank={settings.node_rank}; remove one of them"
        yield Problem("--rdzv-conf", message)
    if nnodes.min != nnodes.max:
        yield Problem(
            "--nnodes",
            f"the static backend requires a fixed number of nodes, not {nnodes}; use --nnodes={nnodes.max}, or another"
            " backend for an elastic job",
        )


def as_dynamic(params: RendezvousParameters) -> RendezvousParameters:
    """Return the equivalent parameters for `c10d`. In these parameters, rank 0 hosts the store and this node requests
    its rank.

    Raises:
        ConfigurationError: the number of nodes is not fixed, or the rank is missing or out of range.
    """
    wrong = list(_problems(params))
    if wrong:
        raise ConfigurationError(*wrong)
    rank = params.get_as_int("rank") or 0
    config = {
        name: value for name, value in params.config.items() if name not in ("rank", "master_addr", "master_port")
    }
    config["is_host"] = rank == 0
    if config.get("timeout") is not None:  # `timeout` is kept as well, for messages
        config["join_timeout"] = config["timeout"]
    node = params.node or Node(f"rank{rank}")
    endpoint = _endpoint(params)
    if rank == 0 and params.max_nodes > 1 and means_this_machine(endpoint.host):
        endpoint = replace(endpoint, host="localhost")  # other nodes use this machine's real address
    made = copy.copy(params)
    made.config, made.endpoint = config, str(endpoint)
    made.node = replace(node, rank_hint=rank)
    return made


def master_of(params: RendezvousParameters) -> str:
    """Return the address at which this node's workers reach rank 0, or an empty string for a single-node job. Raises
    ConfigurationError if the address is invalid."""
    host = _endpoint(params).host if params.max_nodes > 1 else ""
    return "localhost" if means_this_machine(host) and not is_loopback(host) else host  # clients cannot use 0.0.0.0


def _endpoint(params: RendezvousParameters) -> Endpoint:
    if params.endpoint:
        return parse_endpoint(params.endpoint, default_port=DEFAULT_PORT)
    host = parse_endpoint(str(params.get("master_addr") or "127.0.0.1"), "--master-addr").host
    return Endpoint(host, params.get_as_int("master_port") or DEFAULT_PORT)


def _problems(params: RendezvousParameters) -> Iterator[Problem]:
    if params.min_nodes != params.max_nodes:
        yield Problem(
            "--nnodes",
            f"the backend 'static' requires a fixed number of nodes, not {params.min_nodes}:{params.max_nodes}; "
            "use one number, or the backend c10d",
        )
    try:
        rank = params.get_as_int("rank")
    except ValueError as error:
        yield Problem("--node-rank", str(error))
        return
    if rank is None and params.max_nodes > 1:
        yield Problem(
            "--node-rank",
            "the backend 'static' requires --node-rank, counted from 0 and different on every node",
        )
    elif rank is not None and not 0 <= rank < params.max_nodes:
        yield Problem("--node-rank", f"expected a rank from 0 to {params.max_nodes - 1}, found {rank}")

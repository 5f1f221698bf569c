"""The backend `static`: a fixed number of nodes, each told its rank; rank 0 hosts the store at the master address."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_c10d.endpoint import Endpoint, parse_endpoint
from elastic_core.plugin import (
    ConfigurationError,
    Node,
    Problem,
    RendezvousParameters,
    find_option,
    is_loopback,
    joined_host_port,
    means_this_machine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from elastic_core.plugin import Settings

DEFAULT_PORT = 29500
RUN_ID = "none"
"""The run id of a job without --rdzv-id. No other job uses its address, so an id has nothing to distinguish."""

_DIGITS = 10


def defaults(settings: Settings) -> Mapping[str, tuple[Any, str]]:
    """The endpoint from the master's address, torchrun's rank for a node that is given none, and the names."""
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
    if settings.nnodes.max > 1:  # two nodes of one rank then have one name, which is noticed
        found["node_id"] = (f"rank{rank}", "the rank")
    return found


def problems(settings: Settings) -> Iterator[Problem]:
    """What cannot be in the settings of a static job."""
    rank, nnodes = find_option(settings.rdzv_conf, "rank"), settings.nnodes
    if rank is not None and rank.lstrip("0") != str(settings.node_rank).lstrip("0"):
        expected = f"expected the rank of this node, the same as --node-rank ({settings.node_rank})"
        yield Problem("--rdzv-conf", f"{expected}, found rank={rank}; give one")
    if nnodes.min != nnodes.max:
        yield Problem(
            "--nnodes",
            f"expected a fixed number of nodes with the static backend, found {nnodes}; give"
            f" --nnodes={nnodes.max}, or another backend for a job that grows and shrinks",
        )


def as_dynamic(params: RendezvousParameters) -> RendezvousParameters:
    """The parameters of `c10d` that make it static: only rank 0 hosts, and this node asks for its rank.

    Raises:
        ConfigurationError: the number of nodes is not fixed, or the rank is missing or too high.
    """
    wrong = list(_problems(params))
    if wrong:
        raise ConfigurationError(*wrong)
    rank = _rank(params) or 0
    config = {
        name: value for name, value in params.config.items() if name not in ("rank", "master_addr", "master_port")
    }
    config["is_host"] = rank == 0
    if config.get("timeout") is not None:  # which stays, since messages name it
        config["join_timeout"] = config["timeout"]
    node = params.node or Node(f"rank{rank}")
    endpoint = _endpoint(params)
    if rank == 0 and params.max_nodes > 1 and means_this_machine(endpoint.host):
        endpoint = replace(endpoint, host="localhost")  # other nodes have an address for this one
    return RendezvousParameters(
        backend=params.backend,
        endpoint=str(endpoint),
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr,
        node=replace(node, rank_hint=rank),
    ).having(config)


def master_of(params: RendezvousParameters) -> str:
    """Where this node's workers reach rank 0; empty for a single node. Raises ConfigurationError."""
    host = _endpoint(params).host if params.max_nodes > 1 else ""
    return "localhost" if means_this_machine(host) and not is_loopback(host) else host  # 0.0.0.0 is not for clients


def _endpoint(params: RendezvousParameters) -> Endpoint:
    if params.endpoint:
        return parse_endpoint(params.endpoint, default_port=DEFAULT_PORT)
    host = parse_endpoint(str(params.get("master_addr") or "127.0.0.1"), "--master-addr").host
    return Endpoint(host, params.get_as_int("master_port") or DEFAULT_PORT)


def _problems(params: RendezvousParameters) -> Iterator[Problem]:
    if params.min_nodes != params.max_nodes:
        yield Problem(
            "--nnodes",
            f"expected a fixed number of nodes for the backend 'static', found {params.min_nodes}:{params.max_nodes}; "
            "give one number, or use the backend c10d",
        )
    try:
        rank = _rank(params)
    except ValueError as error:
        yield Problem("--node-rank", str(error))
        return
    if rank is None and params.max_nodes > 1:
        yield Problem(
            "--node-rank",
            "expected this node's rank for the backend 'static', found none; give every node another one, from 0",
        )
    elif rank is not None and not 0 <= rank < params.max_nodes:
        yield Problem("--node-rank", f"expected a rank from 0 to {params.max_nodes - 1}, found {rank}")


def _rank(params: RendezvousParameters) -> int | None:
    return params.get_as_int("rank")

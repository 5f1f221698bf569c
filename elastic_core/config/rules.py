"""What must hold between settings. Each rule names the settings it looks at, and returns a message or None.

Bounds of a single value belong to its parser.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from elastic_core.errors import Problem

if TYPE_CHECKING:
    from elastic_core.config.settings import Settings

Rule = Callable[["Settings"], str | None]


def _one_way_to_start(settings: Settings) -> str | None:
    if settings.module and settings.no_python:
        return "expected --module or --no-python, found both; a module needs an interpreter, drop one of them"
    return None


def _standalone_is_one_node(settings: Settings) -> str | None:
    if settings.standalone and settings.nnodes.max > 1:
        return f"expected one node, found --nnodes={settings.nnodes}; drop one of the two"
    return None


def _endpoint_for_several(settings: Settings) -> str | None:
    if settings.nnodes.max == 1 or settings.rdzv_endpoint or settings.rdzv_backend != "c10d":
        return None
    return (
        f"expected a place where the {settings.nnodes.max} nodes meet, found none; give --rdzv-endpoint=HOST:PORT,"
        " the same on every node, or for a static job --master-addr and --node-rank"
    )


def _id_for_several(settings: Settings) -> str | None:
    if settings.nnodes.max == 1 or settings.rdzv_id is not None or settings.standalone:
        return None
    return "expected a name for a job of several nodes, found none; give --rdzv-id, the same on every node"


def _rank_among_nodes(settings: Settings) -> str | None:
    if settings.node_rank is None or settings.node_rank < settings.nnodes.max:
        return None
    return (
        f"expected a rank below the number of nodes, 0 to {settings.nnodes.max - 1} with --nnodes={settings.nnodes},"
        f" found {settings.node_rank}; ranks count from 0"
    )


def _static_is_fixed(settings: Settings) -> str | None:
    if settings.rdzv_backend != "static" or settings.nnodes.min == settings.nnodes.max:
        return None
    return (
        f"expected a fixed number of nodes with the static backend, found {settings.nnodes}; give"
        f" --nnodes={settings.nnodes.max}, or another backend for a job that grows and shrinks"
    )


def _port_with_health(settings: Settings) -> str | None:
    if settings.health is not None and settings.health_port is None:
        return f"expected a port for the health endpoint {settings.health!r}, found none; give --health-port"
    return None


_RULES: tuple[tuple[str, tuple[str, ...], Rule], ...] = (
    ("--module", ("run_path", "module", "no_python"), _one_way_to_start),
    ("--standalone", ("standalone", "nnodes"), _standalone_is_one_node),
    ("--rdzv-endpoint", ("standalone", "nnodes", "rdzv_endpoint", "rdzv_backend"), _endpoint_for_several),
    ("--rdzv-id", ("standalone", "nnodes", "rdzv_id"), _id_for_several),
    ("--node-rank", ("standalone", "node_rank", "nnodes"), _rank_among_nodes),
    ("--nnodes", ("standalone", "nnodes", "rdzv_backend", "rdzv_endpoint", "master_addr"), _static_is_fixed),
    ("--health-port", ("health", "health_port"), _port_with_health),
)


def broken_rules(settings: Settings, unreadable: Collection[str]) -> list[Problem]:
    """The rules that do not hold; a rule that looks at an `unreadable` setting would judge a default, so it waits."""
    problems = []
    for origin, looks_at, rule in _RULES:
        message = None if set(looks_at) & set(unreadable) else rule(settings)
        if message is not None:
            problems.append(Problem(origin, message))
    return problems

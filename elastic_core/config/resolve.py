"""Settings that depend on other settings, as pure steps. Each change has a reason, which becomes the origin.

The order of the steps matters: `--standalone` decides on backend and endpoint, and these decide on the id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.config.schedulers import from_scheduler
from elastic_core.config.spec import DEFAULT
from elastic_core.config.values import NodeRange

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.config.settings import Settings
    from elastic_core.config.spec import Changes, Origins

STATIC_PORT = 29500
"""The port of the static backend without --master-port."""

_DIGITS = 10

STATIC_RUN_ID = "none"
"""The run id of a static job without --rdzv-id."""


def resolve(
    settings: Settings, origins: Origins, new_run_id: Callable[[], str], environ: Mapping[str, str]
) -> tuple[Settings, dict[str, str]]:
    """Fill in the settings that were left open, from a scheduler's variables in `environ` and from other settings.

    Afterwards there is a backend; and a run id, unless a job of several nodes has none, which `rules` reports.
    `new_run_id` is called only for a single node.
    """
    steps: tuple[Callable[[Settings, Origins], Changes], ...] = (
        lambda settings, origins: from_scheduler(settings, origins, environ),
        _start,
        _standalone,
        _backend,
        _endpoint,
        _static_rank,
        lambda settings, _: _run_id(settings, new_run_id),
        _health,
    )
    known = dict(origins)
    for step in steps:
        changes = step(settings, known)
        settings = replace(settings, **{name: value for name, (value, _) in changes.items()})
        known.update({name: reason for name, (_, reason) in changes.items()})
    return settings, known


def _start(settings: Settings, _: Origins) -> Changes:
    if not settings.run_path:
        return {}
    return {name: (False, "--run-path wins") for name in ("module", "no_python") if getattr(settings, name)}


def _standalone(settings: Settings, _: Origins) -> Changes:
    if not settings.standalone:
        return {}
    values: dict[str, object] = {"rdzv_backend": "local", "rdzv_endpoint": "", "rdzv_id": None}
    values |= {name: None for name in ("master_addr", "master_port") if getattr(settings, name) is not None}
    if settings.nnodes.min == 1 and settings.nnodes.max > 1:
        values["nnodes"] = NodeRange(1, 1)
    return {name: (value, "--standalone") for name, value in values.items()}


def _backend(settings: Settings, _: Origins) -> Changes:
    if settings.rdzv_backend:
        return {}
    if settings.rdzv_endpoint:
        return {"rdzv_backend": ("c10d", "an endpoint and no backend")}
    if settings.nnodes.max == 1:
        return {"rdzv_backend": ("local", "one node and no endpoint")}
    fixed = settings.nnodes.min == settings.nnodes.max
    if fixed and settings.master_addr is not None:
        # torchrun does the same, and launchers that set PET_MASTER_ADDR rely on it.
        return {"rdzv_backend": ("static", "several nodes, a master address and no endpoint")}
    return {"rdzv_backend": ("c10d", "several nodes")}


def _endpoint(settings: Settings, _: Origins) -> Changes:
    if settings.rdzv_backend != "static" or settings.rdzv_endpoint:
        return {}
    host = settings.master_addr or "127.0.0.1"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    port = STATIC_PORT if settings.master_port is None else settings.master_port
    return {"rdzv_endpoint": (f"{host}:{port}", "--master-addr and --master-port")}


def _static_rank(settings: Settings, _: Origins) -> Changes:
    if settings.rdzv_backend != "static" or settings.node_rank is not None:
        return {}
    if (rank := rank_option(settings)) is not None and rank.isdecimal() and len(rank) < _DIGITS:
        return {"node_rank": (int(rank), "the option rank")}
    return {"node_rank": (0, "torchrun's default; static gives every node a rank")}


def rank_option(settings: Settings) -> str | None:
    """The option `rank` of the backend, however it is spelled; None if it is not given."""
    return next((value for name, value in settings.rdzv_conf.items() if name.lower() == "rank"), None)


def _run_id(settings: Settings, new_run_id: Callable[[], str]) -> Changes:
    if settings.rdzv_id is not None:
        return {}
    if settings.nnodes.max == 1:
        return {"rdzv_id": (new_run_id(), "made up for a single node")}
    if settings.rdzv_backend == "static":
        # No other job uses the address of a static job, so an id has nothing to distinguish.
        return {"rdzv_id": (STATIC_RUN_ID, "the static backend needs none")}
    return {}


def _health(settings: Settings, origins: Origins) -> Changes:
    if settings.health_port is None or origins.get("health", DEFAULT) != DEFAULT:
        return {}
    return {"health": ("http", "--health-port is set")}

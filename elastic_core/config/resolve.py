"""Resolves settings that depend on other settings, in steps without side effects. Each change has a reason, which
becomes the setting's origin.

The order of the steps matters: `--standalone` determines the backend and the endpoint, and these determine the run id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_core.compat import choices
from elastic_core.config.schedulers import from_scheduler
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import DEFAULT
from elastic_core.config.values import NodeRange
from elastic_core.errors import PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.config.settings import Settings
    from elastic_core.config.spec import Changes, Origins
    from elastic_core.hooks.records import RendezvousBackendRecord

    BackendNamed = Callable[[str], RendezvousBackendRecord | None]

_OPEN = (None, "")  # the values of unset settings


def resolve(
    settings: Settings,
    origins: Origins,
    new_run_id: Callable[[], str],
    environ: Mapping[str, str],
    backend_named: BackendNamed = lambda _: None,
) -> tuple[Settings, dict[str, str]]:
    """Fill in unset settings from a scheduler's variables in `environ`, the backend's defaults, and other settings.

    The result always has a backend. It has a run id, too, except for a multi-node job for which the user has not set
    one; `rules` reports that case. `new_run_id` is called only for a single node.

    Raises:
        PluginError: the backend's `defaults` are invalid.
    """
    steps: tuple[Callable[[Settings, Origins], Changes], ...] = (
        lambda settings, origins: from_scheduler(settings, origins, environ),
        _start,
        _standalone,
        _backend,
        lambda settings, origins: _of_backend(settings, origins, backend_named(settings.rdzv_backend)),
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
    return {name: (False, "overridden by --run-path") for name in ("module", "no_python") if getattr(settings, name)}


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
        return {"rdzv_backend": (choices.BACKEND, "an endpoint and no backend")}
    if settings.nnodes.max == 1:
        return {"rdzv_backend": ("local", "one node and no endpoint")}
    fixed = settings.nnodes.min == settings.nnodes.max
    if fixed and settings.master_addr is not None:
        # As with torchrun; launchers that set PET_MASTER_ADDR rely on it.
        return {"rdzv_backend": (choices.BACKEND_WITH_MASTER, "several nodes, a master address and no endpoint")}
    return {"rdzv_backend": (choices.BACKEND, "several nodes")}


def _of_backend(settings: Settings, origins: Origins, record: RendezvousBackendRecord | None) -> Changes:
    if record is None or record.defaults is None:
        return {}
    changes = record.defaults(settings)
    if unknown := [name for name in changes if name not in SPECS]:
        message = f"the defaults of the backend {record.name!r} set unknown settings: {', '.join(unknown)}"
        raise PluginError(Problem("--rdzv-backend", message))
    found = {}
    for name, (value, reason) in changes.items():
        if origins[name] == DEFAULT or getattr(settings, name) in _OPEN:
            try:
                found[name] = (SPECS[name].parse(value), reason)
            except ValueError as error:
                message = f"defaults of the backend {record.name!r}: {name}: {error}"
                raise PluginError(Problem("--rdzv-backend", message)) from error
    return found


def _run_id(settings: Settings, new_run_id: Callable[[], str]) -> Changes:
    if settings.rdzv_id is not None:
        return {}
    if settings.nnodes.max == 1:
        return {"rdzv_id": (new_run_id(), "generated for a single node")}
    return {}


def _health(settings: Settings, origins: Origins) -> Changes:
    if settings.health_port is None or origins.get("health", DEFAULT) != DEFAULT:
        return {}
    return {"health": (choices.HEALTH_ENDPOINT, "--health-port is set")}

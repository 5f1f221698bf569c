"""Resolves settings that depend on other settings, in steps without side effects. Each change has a reason, which
becomes the setting's origin.

The order of the steps matters: `--standalone` determines the backend and the endpoint, and these determine the run id.
The rules that involve several settings are checked afterward."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core import compat
from elastic_core.config.schedulers import from_scheduler
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import DEFAULT
from elastic_core.config.values import NodeRange
from elastic_core.errors import PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from elastic_core.config.settings import Settings
    from elastic_core.config.spec import Changes, Origins
    from elastic_core.hooks.records import RendezvousBackendRecord

    BackendNamed = Callable[[str], RendezvousBackendRecord | None]


_OPEN = (None, "")  # the values of unset settings


def with_backend(settings: Settings, origins: Origins, environ: Mapping[str, str]) -> tuple[Settings, Origins]:
    """Fill in unset settings from a scheduler's variables in `environ`, and choose the backend if it is unset."""
    return _changed(settings, origins, partial(from_scheduler, environ=environ), _start, _standalone, _backend)


def resolved(
    settings: Settings, origins: Origins, record: RendezvousBackendRecord | None, new_run_id: Callable[[], str]
) -> tuple[Settings, Origins]:
    """Fill in the settings that depend on the backend, and those that depend on other settings.

    The settings then lack a run id only if the user has not set one for a multi-node job; `broken_rules` reports that
    case. `new_run_id` is called only for a single-node job.

    Args:
        settings, origins: the results of `with_backend`.
        record: the backend, or None if it does not exist.

    Raises:
        PluginError: the backend's `defaults` are invalid.
    """
    run_id = partial(_run_id, new_run_id=new_run_id)
    return _changed(settings, origins, partial(_of_backend, record=record), run_id, _health)


def _changed(
    settings: Settings, origins: Origins, *steps: Callable[[Settings, Origins], Changes]
) -> tuple[Settings, Origins]:
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
        return {"rdzv_backend": (compat.BACKEND, "an endpoint and no backend")}
    if settings.nnodes.max == 1:
        return {"rdzv_backend": ("local", "one node and no endpoint")}
    fixed = settings.nnodes.min == settings.nnodes.max
    if fixed and settings.master_addr is not None:
        # As with torchrun; launchers that set PET_MASTER_ADDR rely on it.
        return {"rdzv_backend": (compat.BACKEND_WITH_MASTER, "several nodes, a master address and no endpoint")}
    return {"rdzv_backend": (compat.BACKEND, "several nodes")}


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


def _run_id(settings: Settings, _: Origins, new_run_id: Callable[[], str]) -> Changes:
    if settings.rdzv_id is not None:
        return {}
    if settings.nnodes.max == 1:
        return {"rdzv_id": (new_run_id(), "generated for a single node")}
    return {}


def _health(settings: Settings, origins: Origins) -> Changes:
    if settings.health_port is None or origins.get("health", DEFAULT) != DEFAULT:
        return {}
    return {"health": (compat.HEALTH_ENDPOINT, "--health-port is set")}


_OF_BACKENDS = {name for name, spec in SPECS.items() if spec.group in ("nodes", "rendezvous")}


def broken_rules(
    settings: Settings, unreadable: Collection[str], places: Mapping[str, str], record: RendezvousBackendRecord | None
) -> list[Problem]:
    """Return the violated rules as problems, followed by the problems that the backend reports.

    Rules that involve an `unreadable` setting are skipped, because they would check the setting's default. `places`
    maps the flag of each setting that is not a default to the place where its value was set."""
    broken = [
        Problem(origin, message)
        for origin, looks_at, holds, message in _rules(settings, needs_id=record is not None)
        if not holds and not looks_at & set(unreadable)
    ]
    if record is not None and record.problems is not None and not _OF_BACKENDS & set(unreadable):
        broken += record.problems(settings)
    return [Problem(places.get(problem.origin, problem.origin), problem.message) for problem in broken]


def _rules(settings: Settings, needs_id: bool) -> Iterator[tuple[str, set[str], bool, str]]:
    """For each rule, yield the flag to report, the settings it depends on, whether it holds, and the error message.
    `needs_id` is false for an unknown backend, whose defaults might include a run id."""
    nnodes, several = settings.nnodes, settings.nnodes.max > 1
    yield (
        "--module",
        {"run_path", "module", "no_python"},
        not (settings.module and settings.no_python),
        "--module and --no-python are mutually exclusive; a module needs an interpreter",
    )
    yield (
        "--warm-start",
        {"warm_start", "worker_starter"},
        not settings.warm_start or settings.worker_starter in (None, compat.WARM_STARTER),
        f"--warm-start and --worker-starter={settings.worker_starter} are mutually exclusive; remove one of the two",
    )
    yield (
        "--standalone",
        {"standalone", "nnodes"},
        not (settings.standalone and several),
        f"--standalone and --nnodes={nnodes} are mutually exclusive; remove one of the two",
    )
    yield (
        "--rdzv-id",
        {"standalone", "nnodes", "rdzv_id"},
        not (several and needs_id) or settings.rdzv_id is not None or settings.standalone,
        f"--nnodes={nnodes} requires --rdzv-id, the same on every node",
    )
    yield (
        "--node-rank",
        {"standalone", "node_rank", "nnodes"},
        settings.node_rank is None or settings.node_rank < nnodes.max,
        f"expected a rank from 0 to {nnodes.max - 1} with --nnodes={nnodes}, found {settings.node_rank}",
    )
    yield (
        "--health-port",
        {"health", "health_port"},
        settings.health is None or settings.health_port is not None,
        f"--health={settings.health} requires --health-port",
    )


def script_problems(script: str | None, settings: Settings, environ: Mapping[str, str], cwd: Path) -> list[Problem]:
    """Return the problems with the script. Modules (`-m`) and standard input (`-`) are not checked."""
    message = None
    if script is None:
        message = "elastic run requires a script after the flags; see elastic run --help"
    elif settings.no_python and not settings.module:
        message = _command_problem(script, environ, cwd)
    elif not settings.module and script != "-" and not (path := cwd / script).exists():
        hint = f"to run the module of that name, write -m {script}" if _is_module(script, cwd) else "check the path"
        message = f"{path} does not exist; {hint}"
    return [] if message is None else [Problem("script", message)]


def _command_problem(command: str, environ: Mapping[str, str], cwd: Path) -> str | None:
    import shutil

    # `which` resolves a path with a slash relative to this process's folder, not to `cwd`.
    name = str(cwd / command) if os.sep in command else command
    if shutil.which(name, path=environ.get("PATH", os.defpath)):
        return None
    if Path(name).is_file():
        return f"{name} is not executable; run chmod +x, or remove --no-python"
    where = name if os.sep in command else f"{command!r} in PATH"
    return f"found no executable {where}; check the name, or remove --no-python"


def _is_module(name: str, cwd: Path) -> bool:
    from importlib.util import find_spec

    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    here = cwd.joinpath(*parts)
    if here.with_suffix(".py").is_file() or (here / "__main__.py").is_file():
        return True
    try:
        return find_spec(parts[0]) is not None  # imports nothing, as the name has no dots
    except (ValueError, ImportError):
        return False

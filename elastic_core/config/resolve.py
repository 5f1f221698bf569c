"""Resolves settings that depend on a scheduler's variables or on other settings, in steps without side effects. Each
change has a reason, which becomes the setting's origin.

The order of the steps matters: `--standalone` determines the backend and the endpoint, and these determine the run id.
The rules that involve several settings are checked afterward.

The scheduler's variables are those that Slurm sets in a step's tasks and Kubernetes sets in an Indexed Job's pods. They
override the defaults, but not a config file. They are used only if they certainly describe this job. For example, a
user who types a command on the first node of a four-node allocation may want a single-node job, so only a multi-node
srun step makes a multi-node job. Ambiguous variables are ignored, or reported as an error if the user may have meant a
different job from the one that would start."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core import compat
from elastic_core.config.settings import SPECS
from elastic_core.config.spec import DEFAULT, Reason, with_origins
from elastic_core.errors import PluginError, Problem
from elastic_core.parsing import NodeRange

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from elastic_core.config.settings import Settings
    from elastic_core.config.spec import Changes, Origins
    from elastic_core.hooks.records import RendezvousBackendRecord

    BackendNamed = Callable[[str], RendezvousBackendRecord | None]


_OPEN = (None, "")  # the values of unset settings


def with_backend(settings: Settings, origins: Origins, environ: Mapping[str, str]) -> tuple[Settings, Origins]:
    """Fill in unset settings from a scheduler's variables in `environ`, and choose the backend if it is unset."""
    return _changed(settings, origins, partial(from_scheduler, environ=environ), _start, _standalone, _backend)


def resolved(
    settings: Settings, origins: Origins, record: RendezvousBackendRecord | None, new_run_id: Callable[[], str | None]
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
        known.update({name: Reason(reason) for name, (_, reason) in changes.items()})
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


def _run_id(settings: Settings, _: Origins, new_run_id: Callable[[], str | None]) -> Changes:
    if settings.rdzv_id is not None:
        return {}
    if settings.nnodes.max == 1:
        return {"rdzv_id": (new_run_id(), "generated for a single node")}
    return {}


def _health(settings: Settings, origins: Origins) -> Changes:
    if settings.health_port is None or origins.get("health", DEFAULT) != DEFAULT:
        return {}
    return {"health": (compat.HEALTH_ENDPOINT, "--health-port is set")}


def without_effect(settings: Settings, origins: Origins) -> Iterator[Problem]:
    """Yield a problem for each given setting of a part that no other setting selects."""
    warm = settings.warm_start or settings.worker_starter == compat.WARM_STARTER
    for name, selected, flag in (
        ("watchdog_conf", settings.watchdog, "--watchdog"),
        ("health_conf", settings.health, "--health-port"),
        ("warm_start_cache", warm, "--warm-start"),
        ("warm_start_exclude", warm, "--warm-start"),
    ):
        if getattr(settings, name) and not selected:
            yield Problem(origins[name], f"has no effect without {flag}")


_OF_BACKENDS = {name for name, spec in SPECS.items() if spec.group in ("nodes", "rendezvous")}


def broken_rules(
    settings: Settings, unreadable: Collection[str], origins: Origins, record: RendezvousBackendRecord | None
) -> tuple[Problem, ...]:
    """Return the violated rules as problems, followed by the problems that the backend reports.

    Rules that involve an `unreadable` setting are skipped, because they would check the setting's default."""
    broken = [
        Problem(origin, message)
        for origin, looks_at, holds, message in _rules(settings, needs_id=record is not None)
        if not holds and not looks_at & set(unreadable)
    ]
    if record is not None and record.problems is not None and not _OF_BACKENDS & set(unreadable):
        broken += record.problems(settings)
    return with_origins(broken, origins)


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


READ: Mapping[str, tuple[str, ...]] = {
    "nnodes": ("SLURM_STEP_NUM_NODES",),
    "node_rank": ("SLURM_NODEID", "SLURM_PROCID", "JOB_COMPLETION_INDEX"),
    "rdzv_id": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
}
"""The variables that provide each setting's value. Other variables only determine whether these are used."""

_NODES = "SLURM_STEP_NUM_NODES"
_TASKS = "SLURM_STEP_NUM_TASKS"
_HETEROGENEOUS = "SLURM_HET_SIZE"
_NO_STEP = 0xFFFFFFF0
"""Slurm reserves step numbers from this one upward for batch scripts, interactive steps and similar purposes."""


@dataclass(frozen=True)
class _Step:
    """The step that started this process.

    Attributes:
        nodes: the number of nodes.
        agents: the number of tasks, each of which is assumed to be an agent.
        heterogeneous: whether the step may be part of a heterogeneous job, in which each component is a separate step.
    """

    nodes: int
    agents: int
    heterogeneous: bool


def from_scheduler(settings: Settings, origins: Origins, environ: Mapping[str, str]) -> Changes:
    """Return the scheduler's values for settings that no other source sets."""
    if _alone(settings):
        return {}
    step = _step(environ)
    if step is None:
        changes = {**_of_allocation(environ), **_of_indexed_job(settings, environ)}
    else:
        changes = {**_of_step(step, settings, origins, environ)}
    return {name: change for name, change in changes.items() if origins.get(name, DEFAULT) == DEFAULT}


def scheduler_problems(
    settings: Settings, origins: Origins, environ: Mapping[str, str], others: Sequence[Problem]
) -> list[Problem]:
    """Return a problem for an ambiguous step, or advice if the step's variables caused one of the `others`.

    Pass the settings from before `with_backend`, which turns a job without an endpoint into a single-node job.
    """
    step = None if _alone(settings) else _step(environ)
    if step is None or step.nodes == 1:
        return []
    if origins["nnodes"] == _NODES and any(problem.origin == "--rdzv-endpoint" for problem in others):
        return [Problem(_NODES, f"srun uses {step.nodes} nodes; for a separate job on each node, set --nnodes=1")]
    return [_ambiguous(step)] if origins["nnodes"] == DEFAULT else []


def _ambiguous(step: _Step) -> Problem:
    if step.heterogeneous:
        message = "a heterogeneous job, whose components are separate steps, requires --nnodes and --rdzv-id"
        return Problem(_HETEROGENEOUS, message)
    message = (
        f"expected one task on each of the {step.nodes} nodes, found {step.agents} tasks; start the job with"
        f" srun --ntasks={step.nodes} --ntasks-per-node=1, or set --nnodes={step.agents} to run one agent per task"
    )
    return Problem(_TASKS, message)


def _alone(settings: Settings) -> bool:
    return settings.standalone or settings.rdzv_backend == "local"


def _of_step(step: _Step, settings: Settings, origins: Origins, environ: Mapping[str, str]) -> Changes:
    if step.nodes == 1:  # each task is a separate job, as without Slurm
        return {"nnodes": (NodeRange(1, 1), _NODES)}
    if step.heterogeneous:
        return {}
    nnodes = settings.nnodes
    changes: dict[str, tuple[object, str]] = {}
    if origins.get("nnodes", DEFAULT) == DEFAULT:
        if step.agents != step.nodes:
            return {}
        nnodes = NodeRange(step.nodes, step.nodes)
        changes["nnodes"] = (nnodes, _NODES)
    # A job with more nodes than this step spans several steps, whose ids differ.
    if not 1 < nnodes.max <= step.agents:
        return changes
    rank_from = "SLURM_NODEID" if step.agents == step.nodes else "SLURM_PROCID"
    rank = _count(environ, rank_from)
    if rank is not None and rank < nnodes.max:
        changes["node_rank"] = (rank, rank_from)
    # A finished job's id cannot be reused, so a requeued job gets a new one. SLURM_ARRAY_JOB_ID is not used, because
    # all tasks of an array share it.
    run_id, origin = f"slurm-{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}", "SLURM_JOB_ID and SLURM_STEP_ID"
    restart = _count(environ, "SLURM_RESTART_COUNT")
    again = (f"{run_id}-r{restart}", f"{origin} and SLURM_RESTART_COUNT")
    changes["rdzv_id"] = again if restart else (run_id, origin)
    return changes


def _of_allocation(environ: Mapping[str, str]) -> Changes:
    nodes = _count(environ, "SLURM_JOB_NUM_NODES") or _count(environ, "SLURM_NNODES")
    if nodes is None or nodes == 1 or not environ.get("SLURM_JOB_ID"):
        return {}
    return {
        "nnodes": (NodeRange(1, 1), f"default; srun did not start the agent on the {nodes} nodes of the allocation")
    }


def _of_indexed_job(settings: Settings, environ: Mapping[str, str]) -> Changes:
    index = _count(environ, "JOB_COMPLETION_INDEX")
    if index is None or settings.nnodes.max == 1 or index >= settings.nnodes.max:
        return {}
    return {"node_rank": (index, "JOB_COMPLETION_INDEX")}


def _step(environ: Mapping[str, str]) -> _Step | None:
    nodes, number = _count(environ, _NODES), _count(environ, "SLURM_STEP_ID")
    if not nodes or number is None or number >= _NO_STEP or not _count(environ, "SLURM_JOB_ID") or _left_over(environ):
        return None
    return _Step(nodes, _count(environ, _TASKS) or nodes, (_count(environ, _HETEROGENEOUS) or 0) > 1)


def _left_over(environ: Mapping[str, str]) -> bool:
    """Return whether the variables were inherited from a step that called sbatch. In a batch script, SLURM_NODELIST
    lists the batch job's nodes, not the inherited step's. In a step, srun sets both lists to the step's nodes."""
    of_step = environ.get("SLURM_STEP_NODELIST")
    return of_step is not None and environ.get("SLURM_NODELIST", of_step) != of_step


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else None

"""Checks before a run starts: whether the settings obey the rules that involve several of them, and whether the script
exists.

The bounds of a single value are checked by its parser.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.compat import choices
from elastic_core.config.settings import SPECS
from elastic_core.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from elastic_core.config.settings import Settings
    from elastic_core.hooks.records import RendezvousBackendRecord


_OF_BACKENDS = {name for name, spec in SPECS.items() if spec.group in ("nodes", "rendezvous")}


def broken_rules(
    settings: Settings, unreadable: Collection[str], places: Mapping[str, str], record: RendezvousBackendRecord | None
) -> list[Problem]:
    """Return one problem for each violated rule, followed by the problems that the backend reports. Rules that involve
    an `unreadable` setting are skipped, because they would check its default. `places` maps the flag of each setting
    that is not a default to the place where its value was set."""
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
        not settings.warm_start or settings.worker_starter in (None, choices.WARM_STARTER),
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

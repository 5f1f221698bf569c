"""What must hold before anything starts: rules between settings, and a script that exists.

The bounds of a single value belong to its parser.
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
    """The rules that do not hold, and what the backend finds wrong. Rules about an `unreadable` setting are left out:
    they would judge its default. `places`: by flag, where a value comes from, if not from its default."""
    broken = [
        Problem(origin, message)
        for origin, looks_at, holds, message in _rules(settings, needs_id=record is not None)
        if not holds and not looks_at & set(unreadable)
    ]
    if record is not None and record.problems is not None and not _OF_BACKENDS & set(unreadable):
        broken += record.problems(settings)
    return [Problem(places.get(problem.origin, problem.origin), problem.message) for problem in broken]


def _rules(settings: Settings, needs_id: bool) -> Iterator[tuple[str, set[str], bool, str]]:
    """Of each rule: the flag that is named, the settings it is about, whether it holds, and the message if not.
    `needs_id`: the backend is known, and has given no run id."""
    nnodes, several = settings.nnodes, settings.nnodes.max > 1
    yield (
        "--module",
        {"run_path", "module", "no_python"},
        not (settings.module and settings.no_python),
        "expected --module or --no-python, found both; a module needs an interpreter, drop one of them",
    )
    yield (
        "--warm-start",
        {"warm_start", "worker_starter"},
        not settings.warm_start or settings.worker_starter in (None, choices.WARM_STARTER),
        f"expected the worker starter warm, found --worker-starter={settings.worker_starter}; drop one of the two",
    )
    yield (
        "--standalone",
        {"standalone", "nnodes"},
        not (settings.standalone and several),
        f"expected one node, found --nnodes={nnodes}; drop one of the two",
    )
    yield (
        "--rdzv-id",
        {"standalone", "nnodes", "rdzv_id"},
        not (several and needs_id) or settings.rdzv_id is not None or settings.standalone,
        "expected a name for a job of several nodes, found none; give --rdzv-id, the same on every node",
    )
    yield (
        "--node-rank",
        {"standalone", "node_rank", "nnodes"},
        settings.node_rank is None or settings.node_rank < nnodes.max,
        f"expected a rank below the number of nodes, 0 to {nnodes.max - 1} with --nnodes={nnodes},"
        f" found {settings.node_rank}; ranks count from 0",
    )
    yield (
        "--health-port",
        {"health", "health_port"},
        settings.health is None or settings.health_port is not None,
        f"expected a port for the health endpoint {settings.health!r}, found none; give --health-port",
    )


def script_problems(script: str | None, settings: Settings, environ: Mapping[str, str], cwd: Path) -> list[Problem]:
    """The script's problems. Modules (`-m`) and standard input (`-`) are left to the interpreter."""
    message = None
    if script is None:
        message = "expected a script after the flags, found none; see elastic run --help"
    elif settings.no_python and not settings.module:
        message = _command_problem(script, environ, cwd)
    elif not settings.module and script != "-" and not (path := cwd / script).exists():
        hint = f"it is the name of a module: write -m {script}" if _is_module(script, cwd) else "check the path"
        message = f"expected a script at {path}, found nothing there; {hint}"
    return [] if message is None else [Problem("script", message)]


def _command_problem(command: str, environ: Mapping[str, str], cwd: Path) -> str | None:
    import shutil

    # `which` looks up a path with a slash from the folder of this process, not from `cwd`.
    name = str(cwd / command) if os.sep in command else command
    if shutil.which(name, path=environ.get("PATH", os.defpath)):
        return None
    where = name if os.sep in command else "PATH"
    hint = "make it executable (chmod +x)" if Path(name).is_file() else "check its name, or drop --no-python"
    return f"expected the command {command!r} in {where}, found nothing to execute; {hint}"


def _is_module(name: str, cwd: Path) -> bool:
    from importlib.util import find_spec

    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    here = cwd.joinpath(*parts)
    if here.with_suffix(".py").is_file() or (here / "__main__.py").is_file():
        return True
    try:
        return find_spec(parts[0]) is not None  # imports nothing, because the name has no dots
    except (ValueError, ImportError):
        return False

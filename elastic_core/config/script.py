"""The script: whether there is something to start, found out before a single node is waited for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from elastic_core.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_core.config.settings import Settings

ORIGIN = "script"


def script_problem(script: str | None, settings: Settings, environ: Mapping[str, str], cwd: Path) -> Problem | None:
    """What is wrong with the script, if anything. Modules (`-m`) are left to the interpreter, which knows its path."""
    if script is None:
        return Problem(ORIGIN, "expected a script after the flags, found none; see elastic run --help")
    if settings.module and not settings.run_path:
        return None
    if settings.no_python and not settings.run_path:
        return _command_problem(script, environ, cwd)
    return _file_problem(script, cwd)


def _command_problem(command: str, environ: Mapping[str, str], cwd: Path) -> Problem | None:
    import shutil

    # `which` would look up a path with a slash from the folder of this process, not from `cwd`.
    name = str(cwd / command) if os.sep in command else command
    if shutil.which(name, path=environ.get("PATH", os.defpath)):
        return None
    where = name if os.sep in command else "PATH"
    hint = "make it executable (chmod +x)" if Path(name).is_file() else "check its name, or drop --no-python"
    return Problem(ORIGIN, f"expected the command {command!r} in {where}, found nothing to execute; {hint}")


def _file_problem(script: str, cwd: Path) -> Problem | None:
    path = cwd / script
    if path.exists():
        return None
    hint = "check the path"
    if _is_module(script, cwd):
        hint = f"it is the name of a module: write -m {script}"
    return Problem(ORIGIN, f"expected a script at {path}, found nothing there; {hint}")


def _is_module(name: str, cwd: Path) -> bool:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    here = cwd.joinpath(*parts)
    if here.with_suffix(".py").is_file() or (here / "__main__.py").is_file():
        return True
    return _is_installed(parts[0])


def _is_installed(top_level: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(top_level) is not None  # of a top-level name: nothing is imported
    except (ValueError, ImportError):
        return False

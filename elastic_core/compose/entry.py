"""What the workers run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic_core.workers.starters import CommandStarter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.config import Settings
    from elastic_core.workers.starters import Starter


@dataclass(frozen=True)
class Entry:
    """What the workers run: a name for people, the starter that runs it, and whether that forks the agent's process."""

    name: str
    starter: Starter
    forks: bool = False


def script_entry(settings: Settings, script: str, args: tuple[str, ...], environ: Mapping[str, str]) -> Entry:
    """A script, a module or a command, as the flags say; `PYTHON_EXEC` names another interpreter."""
    if settings.run_path:
        return function_entry(settings, _run_script(), (script, *args), name=script)
    python = (environ.get("PYTHON_EXEC", sys.executable), "-u")
    if settings.no_python:
        command: tuple[str, ...] = (script, *args)
    elif settings.module:
        command = (*python, "-m", script, *args)
    else:
        command = (*python, script, *args)
    return Entry(script, CommandStarter(command))


def function_entry(settings: Settings, function: Callable[..., Any], args: tuple[Any, ...], name: str = "") -> Entry:
    """A Python function, started by `settings.start_method`."""
    from elastic_core.workers.functions import FunctionStarter  # multiprocessing is not free to import

    name = name or getattr(function, "__qualname__", "") or repr(function)  # partial and the like have no name
    return Entry(name, FunctionStarter(function, args, settings.start_method), settings.start_method == "fork")


def _run_script() -> Callable[..., Any]:
    from elastic_core.workers.functions import run_script

    return run_script

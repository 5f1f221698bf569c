"""The built-in worker starters: `subprocess` for commands, and `spawn`, `fork` and `forkserver` for Python functions.
Those for functions are based on `multiprocessing`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks import WorkerStarterRecord, hookimpl

if TYPE_CHECKING:
    from elastic_core.hooks.context import Context
    from elastic_core.interfaces.workers import Starter, Work


def _for_commands(context: Context, work: Work) -> Starter:
    from elastic_core.workers.process import CommandStarter

    if work.function is not None:
        raise _unfit("a script or a command", "a function", "spawn, fork or forkserver")
    return CommandStarter(work.command)


def _for_functions(method: str, context: Context, work: Work) -> Starter:
    from elastic_core.workers.functions import FunctionStarter  # importing multiprocessing takes time

    if work.function is None:
        raise _unfit("a function", "a script or a command", "subprocess")
    return FunctionStarter(work.function, work.args, method)


def _unfit(expected: str, found: str, better: str) -> ConfigurationError:
    return ConfigurationError(Problem("--worker-starter", f"expected {expected} to run, found {found}; use {better}"))


@hookimpl
def elastic_worker_starters() -> list[WorkerStarterRecord]:
    spawn, fork, forkserver = (partial(_for_functions, method) for method in ("spawn", "fork", "forkserver"))
    return [
        WorkerStarterRecord("subprocess", "scripts and commands, each a new program", _for_commands),
        WorkerStarterRecord("spawn", "functions, each in a new Python process", spawn),
        WorkerStarterRecord("fork", "functions, each in a copy of the agent's process", fork, forks=True),
        WorkerStarterRecord("forkserver", "functions, each in a copy of a fresh Python process", forkserver),
    ]

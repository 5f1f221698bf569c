"""Derives from the settings what the workers run, as well as their environment, output and CPU binding."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elastic_core.config.settings import SPECS
from elastic_core.config.spec import specs_of_options
from elastic_core.interfaces.workers import Work
from elastic_core.log import get_logger
from elastic_core.parsing import is_secret, split_commas
from elastic_core.workers.group import GroupPolicy
from elastic_core.workers.output import check_log_dir, unwritable
from elastic_core.workers.process import EnvironmentPolicy, more_files
from elastic_core.workers.streams import OutputPolicy, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from elastic_core.config import Settings
    from elastic_core.hooks.records import Option
    from elastic_core.workers.logs_specs import LogsSpecs
    from elastic_core.workers.numa import Binding, Machine
    from elastic_core.workers.streams import Placer

_SHUTDOWN_TIMEOUT = SPECS["shutdown_timeout"].own_variables()[0]
_OPTION_VARIABLES = [name for spec in SPECS.values() if spec.name.endswith("_conf") for name in spec.variables()]


@dataclass(frozen=True)
class Entry:
    """The script, command or function that the workers run, and its name for messages."""

    name: str
    work: Work


def script_entry(settings: Settings, script: str, args: tuple[str, ...], environ: Mapping[str, str]) -> Entry:
    """Return the entry for a script, module or command. The variable `PYTHON_EXEC` sets the interpreter."""
    if settings.run_path:
        from elastic_core.workers.functions import run_script

        return function_entry(run_script, (script, *args), name=script)
    python = (environ.get("PYTHON_EXEC") or sys.executable, "-u")
    if settings.no_python:
        command: tuple[str, ...] = (script, *args)
    elif settings.module:
        command = (*python, "-m", script, *args)
    else:
        command = (*python, script, *args)
    return Entry(script, Work(command))


def function_entry(function: Callable[..., Any], args: tuple[Any, ...], name: str = "") -> Entry:
    """Return the entry for a Python function."""
    name = name or getattr(function, "__qualname__", "") or repr(function)  # a partial has no name
    return Entry(name, Work(function=function, args=args))


def group_policy(
    settings: Settings,
    local_world_size: int,
    environ: Mapping[str, str],
    stack: contextlib.ExitStack,
    logs_specs: LogsSpecs | None = None,
) -> GroupPolicy:
    """Return the policy for all workers of this node, and let this process open more files.

    When `stack` is closed, it restores the limit on open files, and removes the temporary log folder if that folder is
    empty. `logs_specs` overrides the settings for log files."""
    log_dir = None if logs_specs else _log_dir(settings, stack)
    progress = frozenset(settings.hang_progress if settings.hang_timeout else ())
    output = OutputPolicy(
        redirects=settings.redirects.for_rank,
        tee=settings.tee.for_rank,
        ranks_filter=settings.local_ranks_filter,
        prefix_template=settings.log_line_prefix_template,
        stdout_filters=settings.duplicate_stdout_filters,
        stderr_filters=settings.duplicate_stderr_filters,
        log_dir=log_dir,
        placer=_placer(settings, log_dir, logs_specs),
        terminals=frozenset(stream for stream in Stream if os.isatty(stream)),
        watched="log" in progress,
    )
    environment = EnvironmentPolicy(settings.virtual_local_rank, faulthandler=bool(progress or settings.watchdog))
    binding = _binding(settings, local_world_size, environ.get("CUDA_VISIBLE_DEVICES"))
    return GroupPolicy(output, environment, binding, progress, stack.enter_context(more_files()))


def inherited(
    settings: Settings, environ: Mapping[str, str], secrets: Collection[str] = (), added: Iterable[Option] = ()
) -> dict[str, str]:
    """Return the variables that the workers inherit, and the variable for the shutdown timeout.

    Variables for the agent's health endpoint are removed. An agent that a worker starts cannot use the same port, and
    no worker needs the token. Variables of secret options are removed, as are variables with options (`..._CONF`) that
    contain a secret.

    Args:
        secrets: the names of the options that the plugins' records declare as secret.
        added: the options that plugins add to `elastic run`.
    """
    removed = [*specs_of_options(option for option in added if option.secret).values()]
    if settings.health is not None:
        removed += [SPECS[name] for name in ("health", "health_port", "health_conf")]
    own = {name for spec in removed for name in spec.variables()}
    options = [(name, part) for name in _OPTION_VARIABLES for part in split_commas(environ.get(name, ""))]
    holding = {name for name, option in options if is_secret(option.partition("=")[0], secrets)}
    kept = {name: value for name, value in environ.items() if name not in own and name not in holding}
    return {**kept, _SHUTDOWN_TIMEOUT: f"{settings.shutdown_timeout:g}"}


def _log_dir(settings: Settings, stack: contextlib.ExitStack) -> Path | None:
    """Return the folder from `--log-dir`, or a new folder if files are to be written. The folder is created; an empty
    new folder is removed at the end."""
    if settings.log_dir == Path(os.devnull) and settings.logs_specs is None:
        return None  # as with torchrun, there are no log files
    if settings.log_dir is not None:
        try:
            folder = Path(os.path.abspath(settings.log_dir))  # noqa: PTH100 - without following links
        except OSError as error:  # the current folder has been deleted
            raise unwritable(error, log_dir=True) from error
        return check_log_dir(folder)
    if not _writes_files(settings):
        return None
    try:
        folder = Path(tempfile.mkdtemp(prefix="elastic-logs-"))
    except OSError as error:
        raise unwritable(error, log_dir=False) from error
    stack.callback(_remove_if_empty, folder)
    get_logger().info("log directory created", path=str(folder), reason="log files were requested without --log-dir")
    return folder


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _placer(settings: Settings, log_dir: Path | None, given: LogsSpecs | None) -> Placer | None:
    if given is None and settings.logs_specs is None:
        return None
    from elastic_core.workers import logs_specs

    if given is not None:
        return logs_specs.placer_of(given)
    if settings.logs_specs is None or log_dir is None:
        return None
    return logs_specs.load_placer(
        settings.logs_specs,
        logs_specs.installed_points(settings.plugins),
        log_dir,
        str(settings.redirects),
        str(settings.tee),
        settings.local_ranks_filter,
    )


def _writes_files(settings: Settings) -> bool:
    if settings.logs_specs is not None:
        return True
    maps = (settings.redirects, settings.tee)
    streams = [*(m.everywhere for m in maps), *(streams for m in maps for _, streams in m.named)]
    return any(streams) or bool(settings.duplicate_stdout_filters or settings.duplicate_stderr_filters)


def _binding(settings: Settings, local_world_size: int, visible: str | None) -> Binding | None:
    """Return the configured CPU binding, if any. `visible` is the value of CUDA_VISIBLE_DEVICES."""
    if settings.numa_binding is None:
        return None
    from elastic_core.workers import numa

    mode = cast("numa.Mode", settings.numa_binding)  # the setting's parser accepts no other values
    binding = numa.Binding(mode, numa.read_machine())
    seen = binding.seen_through(visible)
    unbound = [rank for rank in range(local_world_size) if not seen.cpus_for(rank, local_world_size)]
    if unbound:
        reason = why_unbound(seen.machine, unbound[0], local_world_size)
        get_logger().warning("numa binding skipped", mode=mode, local_ranks=unbound, reason=reason)
    return binding


def why_unbound(machine: Machine, local_rank: int, workers: int) -> str:
    """Return the reason why a worker cannot be bound to this machine's CPUs, for use in messages."""
    if not machine.cpus:
        return "the kernel does not report the NUMA layout of the CPUs"
    node = machine.node_of(local_rank, workers)
    if not any(cpu.node == node for cpu in machine.cpus):
        return "the NUMA node of the worker's device is unknown, or none of its CPUs is usable"
    return f"NUMA node {node} has fewer usable cores than workers"

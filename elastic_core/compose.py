"""The only file that knows all rooms: picks records, builds the objects of one agent, ends them in reverse order."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_core.agent import LocalElasticAgent, WorkerSpec
from elastic_core.clock import SystemClock
from elastic_core.devices import count_workers
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.events import check_destination
from elastic_core.hooks.notify import Notifier
from elastic_core.hooks.options import type_options
from elastic_core.hooks.records import HealthEndpointRecord, RendezvousBackendRecord, WatchdogRecord
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.interfaces.node import Node
from elastic_core.log import get_logger
from elastic_core.observers import EventRecorder, Everyone
from elastic_core.workers.environment import EnvironmentPolicy
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.numa import MODES, NO_BINDING, Binding, Machine, read_machine
from elastic_core.workers.starters import CommandStarter
from elastic_core.workers.streams import OutputPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_core.clock import Clock
    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.observer import EnvironmentContributor, Observer
    from elastic_core.interfaces.watchdog import Watchdog
    from elastic_core.interfaces.workers import RoundPlan
    from elastic_core.log import EventName
    from elastic_core.workers.starters import Starter
    from elastic_core.workers.streams import Placer

_HEALTH_TIMEOUT = 30.0  # seconds without a turn of the agent's loop after which an endpoint may call it stuck


@dataclass(frozen=True)
class Entry:
    """What the workers run: a name for people, and the starter that runs it."""

    name: str
    starter: Starter


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
    return Entry(name, FunctionStarter(function, args, settings.start_method))


def _run_script() -> Callable[..., Any]:
    from elastic_core.workers.functions import run_script

    return run_script


@contextlib.contextmanager
def composed(
    settings: Settings,
    entry: Entry,
    manager: PluginManager,
    environ: Mapping[str, str],
    observers: tuple[Observer, ...] = (),
    options: Mapping[str, object] | None = None,
    clock: Clock | None = None,
) -> Iterator[LocalElasticAgent]:
    """An agent that is ready to run. On the way out everything that was made is ended, in reverse order, and the
    health endpoint last.

    `options` are the values of the options that plugins added.

    Raises:
        ConfigurationError: something asked for cannot be had, with everything that is; nothing is left behind.
    """
    _check_available(settings, manager)
    local_world_size = count_workers(settings.nproc_per_node)
    with contextlib.ExitStack() as last, contextlib.ExitStack() as stack:
        clock = clock or SystemClock()
        node = _node(settings, local_world_size)
        handler = _handler(settings, manager, node)
        stack.callback(_end, "plugin failed", f"rendezvous backend {settings.rdzv_backend}", handler.shutdown)
        watchdog = _watchdog(settings, manager)
        if watchdog is not None:
            stack.callback(_end, "plugin failed", f"watchdog {settings.watchdog}", watchdog.stop)
        policy = _policy(settings, local_world_size, environ, stack)
        workers = LocalWorkers(entry.starter, policy, environ, clock)
        stack.callback(workers.close)
        agent = LocalElasticAgent(
            _spec(settings, handler, entry, local_world_size),
            workers,
            node=node.name if settings.nnodes.max > 1 else node.host,
            clock=clock,
            observer=Everyone([*observers, EventRecorder(settings.event_log_handler), Notifier(manager)]),
            contribute=_contributor(manager, watchdog, options or {}),
        )
        stack.callback(agent.close)
        _start_health(settings, manager, agent, last)
        if watchdog is not None:
            watchdog.start(agent.timer_expired)
        yield agent


def _check_available(settings: Settings, manager: PluginManager) -> None:
    """Whatever was asked for by name, before anything is built: raises ConfigurationError with all that is wrong."""
    errors = []
    for check in (_backend, _watchdog_record, _health_record, _event_destination):
        try:
            check(settings, manager)
        except ConfigurationError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigurationError(*(problem for error in errors for problem in error.problems))


def _event_destination(settings: Settings, manager: PluginManager) -> None:
    check_destination(settings.event_log_handler)


def _end(event: EventName, part: str, end: Callable[[], object]) -> None:
    """What breaks while it is ended must not hide how the job ended."""
    try:
        end()
    except Exception as error:  # noqa: BLE001 - a plugin may raise whatever it likes
        get_logger().warning(event, part=part, reason="it broke while it was stopped", exc_info=error)


def _spec(settings: Settings, handler: RendezvousHandler, entry: Entry, local_world_size: int) -> WorkerSpec:
    return WorkerSpec(
        role=settings.role,
        local_world_size=local_world_size,
        rdzv_handler=handler,
        entrypoint=entry.name,
        max_restarts=settings.max_restarts,
        monitor_interval=settings.monitor_interval,
        shutdown_timeout=settings.shutdown_timeout,
        kill_timeout=settings.kill_timeout,
        exit_barrier_timeout=settings.exit_barrier_timeout,
    )


def _backend(settings: Settings, manager: PluginManager) -> tuple[RendezvousBackendRecord, dict[str, Any]]:
    """The backend and its options."""
    record = manager.select(RendezvousBackendRecord, settings.rdzv_backend)
    declared = {option.name for option in record.options or ()}
    flags = {"master_addr": settings.master_addr, "master_port": settings.master_port, "rank": settings.node_rank}
    raw = {name: value for name, value in flags.items() if name in declared and value is not None}
    return record, _typed(record, {**raw, **settings.rdzv_conf}, "--rdzv-conf")


def _node(settings: Settings, local_world_size: int) -> Node:
    """This node as the others will see it."""
    host = socket.gethostname()
    return Node(
        name=settings.node_id or _made_up_name(settings, host),
        host=host,
        role=settings.role,
        local_world_size=local_world_size,
        rank_hint=settings.node_rank,
        max_restarts=settings.max_restarts,
    )


def _made_up_name(settings: Settings, host: str) -> str:
    """In a static job the rank is the name: two nodes of one rank are then two of one name, which is found out."""
    if settings.rdzv_backend == "static" and settings.node_rank is not None:
        return f"rank{settings.node_rank}"
    return f"{host}:{os.getpid()}"


def _handler(settings: Settings, manager: PluginManager, node: Node) -> RendezvousHandler:
    record, config = _backend(settings, manager)
    return record.factory(
        RendezvousParameters(
            backend=settings.rdzv_backend,
            endpoint=settings.rdzv_endpoint,
            run_id=settings.rdzv_id or "",
            min_nodes=settings.nnodes.min,
            max_nodes=settings.nnodes.max,
            local_addr=settings.local_addr,
            node=node,
            **config,
        )
    )


def _typed(
    record: RendezvousBackendRecord | WatchdogRecord | HealthEndpointRecord, raw: Mapping[str, object], origin: str
) -> dict[str, Any]:
    values, problems = type_options(record.options, raw, origin)
    if problems:
        raise ConfigurationError(*problems)
    return values


def _watchdog_record(settings: Settings, manager: PluginManager) -> tuple[WatchdogRecord, dict[str, Any]] | None:
    if settings.watchdog is None:
        return None
    record = manager.select(WatchdogRecord, settings.watchdog)
    return record, _typed(record, settings.watchdog_conf, "--watchdog-conf")


def _watchdog(settings: Settings, manager: PluginManager) -> Watchdog | None:
    found = _watchdog_record(settings, manager)
    if found is None:
        return None
    record, options = found
    return record.factory(settings.rdzv_id or "", options)


def _health_record(settings: Settings, manager: PluginManager) -> tuple[HealthEndpointRecord, dict[str, Any]] | None:
    if settings.health is None:
        return None
    record = manager.select(HealthEndpointRecord, settings.health)
    return record, _typed(record, settings.health_conf, "--health-conf")


def _start_health(
    settings: Settings, manager: PluginManager, agent: LocalElasticAgent, stack: contextlib.ExitStack
) -> None:
    found = _health_record(settings, manager)
    if found is None:
        return
    record, options = found
    server = record.factory(agent.alive_at, settings.health_port or 0, _HEALTH_TIMEOUT, options)
    stack.callback(_end, "endpoint failed", f"health endpoint {settings.health}", server.stop)
    try:
        server.start()
    except OSError as error:
        raise ConfigurationError(
            Problem(
                "--health-port",
                f"expected a port on which the health endpoint {settings.health!r} can answer, found that "
                f"{settings.health_port} cannot be had: {error.strerror or error}; choose another",
            )
        ) from error


def _contributor(
    manager: PluginManager, watchdog: Watchdog | None, options: Mapping[str, object]
) -> EnvironmentContributor:
    """What plugins add, then what the watchdog's clients need, which is known once the watchdog has started."""

    def contribute(plan: RoundPlan) -> dict[str, str]:
        own = watchdog.worker_environment() if watchdog else {}
        return {**manager.contributed_environment(plan, options), **own}

    return contribute


def _policy(
    settings: Settings, local_world_size: int, environ: Mapping[str, str], stack: contextlib.ExitStack
) -> GroupPolicy:
    log_dir = _log_dir(settings, stack)
    output = OutputPolicy(
        redirects=settings.redirects.for_rank,
        tee=settings.tee.for_rank,
        ranks_filter=settings.local_ranks_filter,
        prefix_template=settings.log_line_prefix_template,
        stdout_filters=settings.duplicate_stdout_filters,
        stderr_filters=settings.duplicate_stderr_filters,
        log_dir=log_dir,
        placer=_placer(settings, log_dir),
    )
    binding = _binding(settings, local_world_size, environ.get("CUDA_VISIBLE_DEVICES"))
    return GroupPolicy(output, EnvironmentPolicy(settings.virtual_local_rank), binding)


def _log_dir(settings: Settings, stack: contextlib.ExitStack) -> Path | None:
    """The folder asked for; a new one, and a line that says where, if files were asked for without naming one. It does
    not stay if nothing was written into it."""
    if settings.log_dir is not None or not _writes_files(settings):
        return settings.log_dir
    folder = Path(tempfile.mkdtemp(prefix="elastic-logs-"))
    stack.callback(_remove_if_empty, folder)
    get_logger().info("log directory made", path=str(folder), reason="files were asked for without --log-dir")
    return folder


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _placer(settings: Settings, log_dir: Path | None) -> Placer | None:
    """The plugin that says where logs go, if one was asked for."""
    if settings.logs_specs is None or log_dir is None:
        return None
    from elastic_core.workers import logs_specs

    return logs_specs.load_placer(
        settings.logs_specs,
        logs_specs.installed_points(),
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


def _binding(settings: Settings, local_world_size: int, visible: str | None) -> Binding:
    """The binding asked for, and a line for those who cannot have it. `visible` is CUDA_VISIBLE_DEVICES."""
    mode = next((mode for mode in MODES if mode == settings.numa_binding), None)
    if mode is None:
        return NO_BINDING
    binding = Binding(mode, read_machine())
    seen = binding.seen_through(visible)
    unbound = [rank for rank in range(local_world_size) if not seen.cpus_for(rank, local_world_size)]
    if unbound:
        reason = why_unbound(seen.machine, unbound[0], local_world_size)
        get_logger().warning("numa binding skipped", mode=mode, local_ranks=unbound, reason=reason)
    return binding


def why_unbound(machine: Machine, local_rank: int, workers: int) -> str:
    """Why a worker cannot be bound to processors of this machine, for people."""
    if not machine.cpus:
        return "the kernel does not show the NUMA layout of the processors"
    node = machine.node_of(local_rank, workers)
    if not any(cpu.node == node for cpu in machine.cpus):
        return "the place of the worker's device is unknown, or none of the processors there may be used"
    return f"NUMA node {node} has fewer cores that may be used than workers"

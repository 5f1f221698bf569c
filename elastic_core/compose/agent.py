"""One agent: builds its objects, and ends them in reverse order."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from elastic_core.agent import LocalElasticAgent, WorkerSpec
from elastic_core.clock import SystemClock
from elastic_core.compose import chosen, policy
from elastic_core.devices import count_workers
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.health.board import StatusBoard
from elastic_core.health.spans import export_recoveries
from elastic_core.hooks.calls import Notifier, contributed_environment
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.interfaces.node import Node
from elastic_core.log import get_logger
from elastic_core.observers import EventRecorder, Everyone, MetricRecorder
from elastic_core.rendezvous.handler import made_up_name
from elastic_core.workers.group import LocalWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_core.compose.policy import Entry
    from elastic_core.config import Settings
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.health import AgentView
    from elastic_core.interfaces.observer import EnvironmentContributor, Observer
    from elastic_core.interfaces.watchdog import Watchdog
    from elastic_core.interfaces.workers import RoundPlan
    from elastic_core.log import EventName

_HEALTH_TIMEOUT = 30.0  # seconds without a turn of the agent's loop after which an endpoint may call it stuck


@contextlib.contextmanager
def composed(
    settings: Settings,
    entry: Entry,
    manager: PluginManager,
    environ: Mapping[str, str],
    observers: tuple[Observer, ...] = (),
    options: Mapping[str, object] | None = None,
) -> Iterator[LocalElasticAgent]:
    """An agent that is ready to run. On the way out everything that was made is ended, in reverse order, and the
    health endpoint last.

    `options` are the values of the options that plugins added.

    Raises:
        ConfigurationError: with everything that was asked for and cannot be had; nothing is left behind.
    """
    chosen.check_available(settings, manager)
    chosen.check_forkable(settings, entry, manager)
    local_world_size = count_workers(settings.nproc_per_node)
    with contextlib.ExitStack() as last, contextlib.ExitStack() as stack:
        clock = SystemClock()
        node = _node(settings, local_world_size)
        board = StatusBoard(settings.rdzv_id or "", node.name, settings.role, settings.max_restarts, clock)
        looked_at = (_start_health(settings, manager, board, last), _export_spans(board, environ, last))
        if any(looked_at):
            observers = (board, *observers)
        handler = _handler(settings, manager, node)
        stack.callback(_end, "plugin failed", f"rendezvous backend {settings.rdzv_backend}", handler.shutdown)
        how = policy.group_policy(settings, local_world_size, environ, stack)
        workers = LocalWorkers(entry.starter, how, policy.inherited(settings, environ), clock)
        stack.callback(workers.close)
        watchdog = _watchdog(settings, manager)
        if watchdog is not None:
            stack.callback(_end, "plugin failed", f"watchdog {settings.watchdog}", watchdog.stop)
        recorders = EventRecorder(settings.event_log_handler), MetricRecorder(settings.role, settings.max_restarts)
        agent = LocalElasticAgent(
            _spec(settings, handler, entry, local_world_size),
            workers,
            node=node.name if settings.nnodes.max > 1 else node.host,
            clock=clock,
            observer=Everyone([*observers, *recorders, Notifier(manager)]),
            contribute=_contributor(manager, watchdog, options or {}),
            hangs=policy.hang_policy(settings),
        )
        stack.callback(agent.close)
        board.follow(agent.alive_at, [watchdog.fault] if watchdog else [])
        if watchdog is not None:
            watchdog.start(agent.timer_expired)
            workers.guard(watchdog.scratch())
        yield agent


def _end(event: EventName, part: str, end: Callable[[], object]) -> None:
    """End one part. The log tells its error, which must not hide how the job ended."""
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


def _node(settings: Settings, local_world_size: int) -> Node:
    """This node as the other nodes will see it."""
    host = socket.gethostname()
    if settings.rdzv_backend == "static" and settings.node_rank is not None:
        default = f"rank{settings.node_rank}"  # two nodes of one rank then have one name, which is noticed
    else:
        default = made_up_name(host)
    return Node(
        name=settings.node_id or default,
        host=host,
        role=settings.role,
        local_world_size=local_world_size,
        rank_hint=settings.node_rank,
        max_restarts=settings.max_restarts,
        stop_timeout=settings.shutdown_timeout + settings.kill_timeout,
    )


def _handler(settings: Settings, manager: PluginManager, node: Node) -> RendezvousHandler:
    record, config = chosen.backend(settings, manager)
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


def _watchdog(settings: Settings, manager: PluginManager) -> Watchdog | None:
    found = chosen.watchdog(settings, manager)
    if found is None:
        return None
    record, options = found
    return record.factory(settings.rdzv_id or "", options)


def _start_health(settings: Settings, manager: PluginManager, view: AgentView, stack: contextlib.ExitStack) -> bool:
    """Start the health endpoint; False without one."""
    found = chosen.health_endpoint(settings, manager)
    if found is None:
        return False
    record, options = found
    server = record.factory(view, settings.health_port or 0, _HEALTH_TIMEOUT, options)
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
    return True


def _export_spans(board: StatusBoard, environ: Mapping[str, str], stack: contextlib.ExitStack) -> bool:
    """Export spans of recoveries; False if nothing asks for that. An error of the exporter is logged and not raised."""
    try:
        end = export_recoveries(board, environ)
    except Exception as error:  # noqa: BLE001 - an exporter may raise whatever it likes
        get_logger().warning("spans lost", reason=str(error), exc_info=error)
        return False
    if end is not None:
        stack.callback(_end, "spans lost", "OpenTelemetry", end)
    return end is not None


def _contributor(
    manager: PluginManager, watchdog: Watchdog | None, options: Mapping[str, object]
) -> EnvironmentContributor:
    """A function that gives the variables of plugins, and those of the watchdog, which it knows once it has started."""

    def contribute(plan: RoundPlan) -> dict[str, str]:
        own = watchdog.worker_environment() if watchdog else {}
        return {**contributed_environment(manager, plan, options), **own}

    return contribute

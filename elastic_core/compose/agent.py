"""Builds one agent's objects, and stops them in reverse order."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_core import events
from elastic_core.agent.interface import WorkerSpec
from elastic_core.agent.process_agent import ProcessAgent
from elastic_core.clock import SystemClock
from elastic_core.compose import policy
from elastic_core.config import SPECS
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.health.board import StatusBoard
from elastic_core.hooks.calls import (
    contributed_environment,
    notifier,
    watchdog_notifier,
    watching_notices,
)
from elastic_core.hooks.records import RankPolicyRecord
from elastic_core.interfaces.handler import RoundHandler
from elastic_core.interfaces.health import CheckMoment
from elastic_core.interfaces.node import Node, generated_name
from elastic_core.log import tolerating
from elastic_core.observers import CombinedObserver, EventRecorder, MetricRecorder
from elastic_core.workers.group import LocalWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_core.agent.hang import HangPolicy
    from elastic_core.compose.plan import Plan
    from elastic_core.compose.policy import Entry
    from elastic_core.config import Settings
    from elastic_core.interfaces.handler import RendezvousHandler
    from elastic_core.interfaces.health import HealthCheckServer
    from elastic_core.interfaces.observer import EnvironmentContributor, Observer
    from elastic_core.interfaces.workers import RoundPlan, Watchdog
    from elastic_core.workers.logs_specs import LogsSpecs


@dataclass(frozen=True)
class AgentParts:
    """The parts of an agent, except its rendezvous handler. The parts do nothing until the agent runs."""

    processes: LocalWorkers
    observer: Observer
    contribute: EnvironmentContributor
    hangs: HangPolicy | None
    board: StatusBoard
    watchdog: Watchdog | None

    def attach(self, agent: ProcessAgent) -> None:
        """Connect the watchdog, the guardian and the status board to the agent. Call this before the agent runs."""
        faults = [self.watchdog.fault] if self.watchdog else []
        handler = agent.get_worker_group().spec.rdzv_handler
        seal = None
        if isinstance(handler, RoundHandler):
            self.processes.hold(handler.lifeline)
            seal = handler.seal
        not_signed = (lambda: 0) if seal is None else (lambda: seal.refused)
        self.board.follow(agent.alive_at, faults, self.processes.template_pid, not_signed, self.observer)
        if self.watchdog is not None:
            self.watchdog.start(agent.timer_expired)
            self.processes.guard(self.watchdog.scratch())


@contextlib.contextmanager
def composed(
    plan: Plan,
    entry: Entry,
    environ: Mapping[str, str],
    observers: tuple[Observer, ...] = (),
    logs_specs: LogsSpecs | None = None,
    health_check_server: HealthCheckServer | None = None,
) -> Iterator[ProcessAgent]:
    """Yield an agent that is ready to run. On exit, its objects are stopped in reverse order, the health endpoint last.

    Args:
        logs_specs: overrides the settings for log files.
        health_check_server: overrides the settings for the health endpoint.

    Raises:
        ConfigurationError: an object cannot be built. The objects built before it have been stopped.
    """
    settings = plan.settings
    local_world_size = _worker_count(settings.nproc_per_node)
    node = _node(settings, local_world_size)
    board = StatusBoard(settings.rdzv_id or "", node.name, settings.role, settings.max_restarts, SystemClock())
    with contextlib.ExitStack() as stack:
        answer(plan, board, health_check_server, stack)
        handler = plan.handler(node)
        stack.callback(_end, f"rendezvous backend {settings.rdzv_backend}", handler.shutdown)
        _rank(handler, plan)
        parts = stack.enter_context(parts_for(plan, entry, environ, board, local_world_size, observers, logs_specs))
        agent = ProcessAgent(
            WorkerSpec(
                settings.role,
                local_world_size,
                handler,
                max_restarts=settings.max_restarts,
                monitor_interval=settings.monitor_interval,
            ),
            parts.processes,
            settings.exit_barrier_timeout,
            settings.shutdown_timeout,
            kill_timeout=settings.kill_timeout,
            node=node.name if settings.nnodes.max > 1 or settings.node_id else node.host,
            host=node.host,
            observer=parts.observer,
            contribute=parts.contribute,
            hangs=parts.hangs,
            stop_at_multiple=settings.stop_at_multiple,
        )
        stack.callback(agent.close)
        parts.attach(agent)
        stack.enter_context(watching_notices(plan.contexts, agent.receive_notice))
        yield agent


def answer(plan: Plan, board: StatusBoard, given: HealthCheckServer | None, stack: contextlib.ExitStack) -> None:
    """Start the configured health endpoint, or use the `given` running server instead. `stack` stops either."""
    if given is not None:
        stack.callback(_end, "health check server", given.stop)
    elif (server := plan.made_health_endpoint(board)) is not None:
        from elastic_core.health.checks import RunningChecks

        settings, checks = plan.settings, plan.health_checks(CheckMoment.RUNNING)
        board.have_checked(RunningChecks(checks, SystemClock()).results)
        stack.callback(_end, f"health endpoint {settings.health}", server.stop)
        try:
            server.start()
        except OSError as error:
            message = (
                f"the health endpoint {settings.health!r} cannot use port {settings.health_port}: "
                f"{error.strerror or error}; choose another port"
            )
            raise ConfigurationError(Problem("--health-port", message)) from error


@contextlib.contextmanager
def parts_for(
    plan: Plan,
    entry: Entry,
    environ: Mapping[str, str],
    board: StatusBoard,
    local_world_size: int,
    observers: tuple[Observer, ...] = (),
    logs_specs: LogsSpecs | None = None,
) -> Iterator[AgentParts]:
    """Yield the plan's parts, and stop them when the context ends. For the arguments, see `composed`."""
    settings, manager = plan.settings, plan.manager
    with contextlib.ExitStack() as stack:
        how = policy.group_policy(settings, local_world_size, environ, stack, logs_specs)
        variables = policy.inherited(settings, environ, manager.secret_options(), manager.added_options())
        workers = LocalWorkers(plan.start_with(entry.work), how, variables)
        stack.callback(workers.close)
        watchdog = plan.made_watchdog()
        if watchdog is not None:
            stack.callback(_end, f"watchdog {settings.watchdog}", watchdog.stop)
            observers = (*observers, watchdog_notifier(watchdog, settings.watchdog or "", workers.log_files))
        name = settings.event_log_handler
        handler = events.open_handler(name)
        if name not in events.handler_names() and isinstance(handler, events.FileHandler):
            stack.callback(_end, f"event handler {name}", handler.close)
        recorders = (EventRecorder(handler, name), MetricRecorder(settings.role, settings.max_restarts))
        observer = CombinedObserver([board, *observers, *recorders, notifier(plan.contexts)])

        def contribute(round_plan: RoundPlan) -> dict[str, str]:
            # The watchdog's variables are known only after it has started.
            own = watchdog.worker_environment() if watchdog else {}
            return {**contributed_environment(round_plan, plan.contexts), **own}

        yield AgentParts(workers, observer, contribute, _hang_policy(settings), board, watchdog)


def _hang_policy(settings: Settings) -> HangPolicy | None:
    if not settings.hang_timeout:
        return None
    from elastic_core.agent.hang import HangPolicy

    return HangPolicy(settings.hang_timeout, settings.hang_warmup, settings.hang_progress)


def _worker_count(wanted: int | str) -> int:
    if isinstance(wanted, int):
        return wanted
    from elastic_core.devices import count_workers

    return count_workers(wanted)


def _end(part: str, end: Callable[[], object]) -> None:
    """Stop one part. Errors are only logged, so that they do not hide the job's outcome."""
    with tolerating("plugin failed", "stopping it", part=part):
        end()


def _node(settings: Settings, local_world_size: int) -> Node:
    host = socket.gethostname()
    return Node(
        name=settings.node_id or generated_name(host),
        host=host,
        role=settings.role,
        local_world_size=local_world_size,
        rank_hint=settings.node_rank,
        max_restarts=settings.max_restarts,
        stop_timeout=settings.shutdown_timeout + settings.kill_timeout,
    )


def _rank(handler: RendezvousHandler, plan: Plan) -> None:
    settings = plan.settings
    if plan.chosen[RankPolicyRecord].record.name == SPECS["rank_policy"].default or settings.nnodes.max == 1:
        return
    if not isinstance(handler, RoundHandler):
        message = f"rank policies do not apply to the backend {settings.rdzv_backend!r}, which assigns ranks itself"
        raise ConfigurationError(Problem("--rank-policy", message))
    handler.rank_by(plan.made_rank_policy())

"""Launches jobs from Python with `elastic_launch`, `launch_agent` or `LocalElasticAgent`. The command line also uses
this module, through `run_job`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core import metrics
from elastic_core.agent.process_agent import ProcessAgent
from elastic_core.clock import SystemClock
from elastic_core.compose.agent import answer, composed, parts_for
from elastic_core.compose.plan import Plan, plan_of
from elastic_core.compose.policy import Entry, function_entry, script_entry
from elastic_core.config import SPECS, Reading, from_environment, from_torchrun, settings_from
from elastic_core.config.reading import parse_found
from elastic_core.config.spec import specs_of_options
from elastic_core.errors import ChildFailedError, ConfigurationError, Problem
from elastic_core.health.board import StatusBoard
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import RendezvousBackendRecord
from elastic_core.hooks.selection import Chosen
from elastic_core.interfaces.handler import RendezvousHandler
from elastic_core.log import show_unless_configured
from elastic_core.parsing import find_option
from elastic_core.workers.sessions import catches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elastic_core.agent.interface import RunResult, WorkerSpec
    from elastic_core.config import Settings
    from elastic_core.config.resolve import BackendNamed
    from elastic_core.config.spec import RawValue
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.health import HealthCheckServer
    from elastic_core.interfaces.observer import Observer
    from elastic_core.workers.logs_specs import LogsSpecs


@dataclass
class LaunchConfig:
    """Describes a job to launch. Fields that torch's `LaunchConfig` also has keep their names, order and meaning. If a
    field is None, the command line's default applies. Other fields may have different defaults than the command line;
    for example, `max_restarts` is 3.

    Settings without a field are read from the environment variables that `elastic run` uses (see
    docs/reference/environment.md): watchdog, health endpoint, hang detection, worker starter, warm start, rank policy,
    and torchrun's TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT.

    Args:
        min_nodes, max_nodes: the number of nodes; 1 <= min_nodes <= max_nodes.
        nproc_per_node: the number of workers on this node or, as for `--nproc-per-node`, a device type to count.
        logs_specs: the destinations of logs (see `elastic_core.multiprocessing.LogsSpecs`), or the name of an entry
            point in the group `torchrun.logs_specs`.
        run_id: the job's id. If empty, an id is generated for a single-node job.
        rdzv_timeout: seconds until joining fails. Applies to backends with an option `join_timeout`; -1 selects its
            default.
        max_restarts: the maximum number of restarts after failures.
        log_line_prefix_template: the prefix of output lines (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE).
        metrics_cfg: the destination of metrics: `{"destination": "console"}` or `"null"`; unchanged if empty.
        numa_options: torch's `NumaOptions`, or a value of `--numa-binding`.
        shutdown_timeout: seconds between SIGTERM and SIGKILL; defaults to TORCH_ELASTIC_SHUTDOWN_TIMEOUT.
        warm_start: fork workers from a process that has already imported their modules (default: ELASTIC_WARM_START).
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int | str
    logs_specs: LogsSpecs | str | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = ""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    log_dir: str | None = None
    redirects: str | None = None
    tee: str | None = None
    warm_start: bool = False

    def settings(
        self, environ: Mapping[str, str] | None = None, backend_named: BackendNamed = lambda _: None
    ) -> Settings:
        """Return the launch's settings, without `rdzv_timeout` and `metrics_cfg`. Settings whose field is None, and
        settings without a field, are read from `environ`. For `backend_named`, see `config.read`.

        Raises:
            ConfigurationError: the settings are invalid; the error lists all problems.
        """
        variables = _variables(environ or {})
        given: dict[str, object] = {"nnodes": f"{self.min_nodes}:{self.max_nodes}"}
        given |= {"rdzv_id": self.run_id or None, "rdzv_conf": self.rdzv_configs or None}
        if self.numa_options is not None:
            from elastic_core.workers.numa import mode_of

            given["numa_binding"] = mode_of(self.numa_options)
        for name, value in vars(self).items():
            if name in SPECS:
                given[name] = value or None if name in _UNSET_IF_EMPTY else value
        if not isinstance(self.logs_specs, str):
            given["logs_specs"] = None
        given = {name: value for name, value in given.items() if value is not None}
        return settings_from({**variables, **given}, backend_named)


def _variables(environ: Mapping[str, str]) -> dict[str, RawValue]:
    """Return the values that environment variables provide for optional fields and for settings without a field."""
    own = from_environment(environ, {name: SPECS[name] for name in _WITHOUT_FIELD})
    return {**from_torchrun(environ, SPECS), **own.found}


_UNSET_IF_EMPTY = ("rdzv_backend", "rdzv_endpoint", "local_addr", "log_dir", "redirects", "tee", "warm_start")
_WITHOUT_FIELD = (
    *("watchdog", "watchdog_conf", "health", "health_port", "health_conf"),
    *("hang_timeout", "hang_warmup", "hang_progress"),
    *("worker_starter", "worker_starter_conf", "rank_policy", "rank_policy_conf"),
    *("warm_start", "warm_start_cache", "warm_start_exclude"),
)


class elastic_launch:  # noqa: N801 - torch's name
    """Runs a job. `elastic_launch(config, entrypoint)(*args)` returns the workers' return values by global rank.

    Args:
        config: what to launch.
        entrypoint: a function (picklable unless the start method is `fork`) or a command.

    Raises:
        ChildFailedError: workers failed, and no restarts were left or a restart would not have helped.
        SignalException: the program received one of the signals to handle and has stopped the workers.
        ConfigurationError, RendezvousError, UnkillableWorkersError.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: HealthCheckServer | None = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
) -> dict[int, Any]:
    """Run the job on this node (see `elastic_launch`)."""
    plan = _plan(config)
    metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
    entry = _entry(plan.settings, entrypoint, args)
    specs = None if isinstance(config.logs_specs, str) else config.logs_specs
    result = run_job(plan, entry, os.environ, logs_specs=specs, health_check_server=health_check_server)
    return result.return_values


def _plan(config: LaunchConfig) -> Plan:
    """Return the plan. The values of the plugins' options come from their variables."""
    manager = PluginManager.load(os.environ)
    origins = {name: found.origin for name, found in _variables(os.environ).items()}
    settings = _with_join_timeout(config.settings(os.environ, manager.backend_named), config.rdzv_timeout, manager)
    options = manager.added_options()
    specs = specs_of_options(options)
    values, unreadable = parse_found(from_environment(os.environ, specs).found, specs)
    if unreadable:
        raise ConfigurationError(*unreadable.values())
    added = {option.name: values[option.name.replace("-", "_")] for option in options}
    return plan_of(Reading(settings, origins=origins, added=added), manager).checked()


def _entry(settings: Settings, entrypoint: Callable[..., Any] | str | None, args: Sequence[Any]) -> Entry:
    if callable(entrypoint):
        return function_entry(entrypoint, tuple(args))
    if not entrypoint:
        raise ConfigurationError(Problem("entry point", f"expected a function or a command, found {entrypoint!r}"))
    return script_entry(replace(settings, no_python=True), entrypoint, tuple(map(str, args)), os.environ)


class LocalElasticAgent(ProcessAgent):
    """An agent that uses the program's own rendezvous handler, or torch's. The program must shut down the handler
    itself. `run` handles signals as `elastic_launch` does. The environment variables of settings without a field (see
    `LaunchConfig`) apply here as well.

    Args:
        spec: the workers to run.
        logs_specs: the destinations of the workers' output.
        start_method: for functions: spawn, fork or forkserver.
        exit_barrier_timeout: seconds to wait for other nodes' workers after this node's workers have succeeded.
        log_line_prefix_template: the prefix of output lines (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE).
        shutdown_timeout: seconds between SIGTERM and SIGKILL.
        health_check_server: a server that the program has started. `run` stops it. By default, the environment
            variables select the health endpoint.
        uninterruptible_state_timeout: seconds after SIGKILL until a process is reported as unkillable. For None, 0 and
            negative values, TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT is used.

    Raises:
        ConfigurationError: the configuration is invalid; the error lists all problems.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        handler: Any = spec.rdzv_handler
        if not isinstance(handler, RendezvousHandler):
            from elastic_core.compat.backends import TorchrunHandler

            spec = replace(spec, rdzv_handler=TorchrunHandler(handler))
        config = LaunchConfig(
            1,
            1,
            spec.local_world_size,
            run_id=spec.rdzv_handler.get_run_id(),
            role=spec.role,
            max_restarts=spec.max_restarts,
            monitor_interval=spec.monitor_interval,
            start_method=start_method,
            log_line_prefix_template=log_line_prefix_template,
            event_log_handler=spec.event_log_handler,
            numa_options=spec.numa_options,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
            virtual_local_rank=spec.virtual_local_rank,
            shutdown_timeout=shutdown_timeout,
        )
        plan = _plan(config)
        settings = plan.settings
        backend = spec.rdzv_handler.get_backend()  # may be empty if the program has its own handler
        if backend and plan.manager.backend_named(backend) is not None:
            found = plan.manager.provided(RendezvousBackendRecord, backend)
            settings = replace(settings, rdzv_backend=found.record.name)
            chosen = {**plan.chosen, RendezvousBackendRecord: Chosen(found.record, found.source, {})}
            plan = replace(plan, reading=replace(plan.reading, settings=settings), chosen=chosen)
        self._run_plan = plan
        entry = _entry(settings, spec.entrypoint, spec.args)
        self._health_check_server = health_check_server
        node = socket.gethostname()
        board = StatusBoard(settings.rdzv_id or "", node, settings.role, settings.max_restarts, SystemClock())
        self._until_closed = contextlib.ExitStack()
        self._parts = self._until_closed.enter_context(
            parts_for(plan, entry, os.environ, board, spec.local_world_size, logs_specs=logs_specs)
        )
        super().__init__(
            spec,
            self._parts.processes,
            exit_barrier_timeout,
            shutdown_timeout,
            kill_timeout=max(uninterruptible_state_timeout or 0, 0) or settings.kill_timeout,
            node=node,
            host=node,
            observer=self._parts.observer,
            contribute=self._parts.contribute,
            hangs=self._parts.hangs,
            stop_at_multiple=settings.stop_at_multiple,
        )

    def run(self, role: str = "default") -> RunResult:
        show_unless_configured()
        with self._until_closed, contextlib.ExitStack() as stack:
            answer(self._run_plan, self._parts.board, self._health_check_server, stack)
            stack.enter_context(_signals_to(self, self._run_plan.settings.signals_to_handle))
            self._parts.attach(self)
            return super().run(role)

    def close(self) -> None:
        super().close()
        self._until_closed.close()


def _with_join_timeout(settings: Settings, seconds: int, manager: PluginManager) -> Settings:
    record = manager.backend_named(settings.rdzv_backend)
    options = () if record is None else record.options
    accepted = ["join_timeout"] if options is None else [option.name for option in options]
    names = [name for name in ("join_timeout", "timeout") if name in accepted]
    if seconds <= 0 or not names or any(find_option(settings.rdzv_conf, name) is not None for name in names):
        return settings
    return replace(settings, rdzv_conf={**settings.rdzv_conf, names[0]: str(seconds)})


def run_job(
    plan: Plan,
    entry: Entry,
    environ: Mapping[str, str],
    observers: tuple[Observer, ...] = (),
    logs_specs: LogsSpecs | None = None,
    health_check_server: HealthCheckServer | None = None,
) -> RunResult:
    """Create an agent, run it with signal handlers installed, and clean up. For the arguments, see `composed`.

    Raises the same errors as `elastic_launch`.
    """
    show_unless_configured()
    with (
        _mortal(plan.settings.signals_to_handle),
        contextlib.ExitStack() as handling,  # ends last, so that no signal interrupts the handover of the store
        composed(plan, entry, environ, observers, logs_specs, health_check_server) as agent,
    ):
        handling.enter_context(_signals_to(agent, plan.settings.signals_to_handle))
        result = agent.run(plan.settings.role)
    if result.is_failed():
        error = ChildFailedError(entry.name, result.failures)
        _write_parent_error_file(error.get_first_failure()[1], environ)
        raise error
    return result


@contextlib.contextmanager
def _mortal(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Let signals end this process before the agent handles them, even if it is process 1 of a container. The kernel
    does not deliver a signal to process 1 if no handler is installed."""
    own: list[signal.Signals] = []
    if os.getpid() == 1 and threading.current_thread() is threading.main_thread():
        own = [signum for signum in signals if signal.getsignal(signum) is signal.SIG_DFL]
    for signum in own:
        signal.signal(signum, lambda number, _: os._exit(128 + number))
    try:
        yield
    finally:
        for signum in own:
            signal.signal(signum, signal.SIG_DFL)


@contextlib.contextmanager
def _signals_to(agent: ProcessAgent, signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Forward signals to the agent within the context. Only the main thread can do so; elsewhere, nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Schedulers such as Slurm send these signals to agents and workers alike, for example to make programs save a
    # checkpoint. By default, they would end the agent.
    free = [s for s in (signal.SIGUSR1, signal.SIGUSR2) if signal.getsignal(s) is signal.SIG_DFL]
    spared = [s for s in free if s not in signals and not catches(os.getpid(), s)]  # faulthandler may catch the signal
    before = {signum: signal.getsignal(signum) for signum in (*signals, *spared)}
    # If SIGHUP is ignored at startup, it stays ignored, so that nohup protects the job.
    taken = [s for s in signals if not (s is signal.SIGHUP and before[s] is signal.SIG_IGN)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        for signum in spared:
            signal.signal(signum, lambda *_: None)  # not SIG_IGN, which workers would inherit
        for signum in taken:
            signal.signal(signum, lambda number, _frame: agent.receive_signal(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, taken)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for signum in (*taken, *spared):
            # None means that the handler was not installed from Python. Python cannot restore such a handler.
            signal.signal(signum, signal.SIG_DFL if before[signum] is None else before[signum])


def _write_parent_error_file(failure: ProcessFailure, environ: Mapping[str, str]) -> None:
    """Write the first failure to this process's error file, if this process is itself a worker of another agent."""
    from elastic_core import error_file

    if path := environ.get(error_file.VARIABLE):
        extra = {"py_callstack": failure.message, "timestamp": str(int(failure.timestamp))}
        data = failure.error_file_data or {"message": {"message": failure.reason, "extraInfo": extra}}
        error_file.write(path, data)

"""Launching from Python: `LaunchConfig`, `elastic_launch`, `launch_agent`; and `run_job`, on which the CLI stands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core import metrics
from elastic_core.compose import Entry, composed, function_entry, script_entry, without_missing
from elastic_core.config import SPECS, from_environment, from_torchrun, settings_from
from elastic_core.errors import ChildFailedError, ConfigurationError, Problem
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import RendezvousBackendRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elastic_core.agent import LocalElasticAgent, RunResult
    from elastic_core.config import Settings
    from elastic_core.config.spec import Found
    from elastic_core.errors import ProcessFailure
    from elastic_core.interfaces.observer import Observer


@dataclass
class LaunchConfig:
    """What to launch, for Python programs. Names, order and meaning of the fields are those of torch's `LaunchConfig`,
    as far as it has them. The defaults differ from those of the command line: here `max_restarts` is 3. A field that is
    None has the default of the command line.

    For what has no field here, these variables count as for `elastic run`: watchdog
    (TORCHELASTIC_ENABLE_FILE_TIMER=1, ELASTIC_WATCHDOG, ELASTIC_WATCHDOG_CONF), health endpoint
    (TORCHELASTIC_HEALTH_CHECK_PORT, ELASTIC_HEALTH, ELASTIC_HEALTH_PORT, ELASTIC_HEALTH_CONF), hang detection
    (ELASTIC_HANG_TIMEOUT, ELASTIC_HANG_WARMUP, ELASTIC_HANG_PROGRESS), and torchrun's
    TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT.

    Args:
        min_nodes, max_nodes: 1 <= min_nodes <= max_nodes.
        nproc_per_node: workers on this node; a number, or what to count, as for `--nproc-per-node`.
        logs_specs: the name of an entry point in group `torchrun.logs_specs` (torch has an object here).
        run_id: name of the job; empty: generated for a single node.
        rdzv_timeout: seconds until joining fails, for backends that have an option `join_timeout`; -1: the backend's.
        max_restarts: restarts of the workers after a failure.
        log_line_prefix_template: None: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE if that is set.
        metrics_cfg: `{"destination": "console"}` or `"null"`: where metrics go from now on (`metrics.configure`); None
            changes nothing.
        shutdown_timeout: seconds between SIGTERM and SIGKILL; None: TORCH_ELASTIC_SHUTDOWN_TIMEOUT if that is set.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int | str
    logs_specs: str | None = None
    run_id: str = ""
    role: str = "default"
    rdzv_endpoint: str = ""
    rdzv_backend: str = ""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    log_dir: str | None = None
    redirects: str | None = None
    tee: str | None = None
    numa_binding: str | None = None

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings of this launch; `rdzv_timeout` and `metrics_cfg` are none. `environ` is read for fields that are
        None, and for what has no field.

        Raises:
            ConfigurationError: with everything that is wrong.
        """
        variables = _variables(environ or {})
        given: dict[str, object] = {"nnodes": f"{self.min_nodes}:{self.max_nodes}"}
        given |= {"rdzv_id": self.run_id or None, "rdzv_conf": self.rdzv_configs or None}
        for name, value in vars(self).items():
            if name in SPECS:
                given[name] = value or None if name in _UNSET_IF_EMPTY else value
        return settings_from({**variables, **{name: value for name, value in given.items() if value is not None}})


def _variables(environ: Mapping[str, str]) -> dict[str, Found]:
    """What variables set of what a `LaunchConfig` may leave open, or has no field for."""
    own = from_environment(environ, {name: SPECS[name] for name in _WITHOUT_FIELD})
    return {**from_torchrun(environ, SPECS), **own.found}


_UNSET_IF_EMPTY = ("rdzv_backend", "rdzv_endpoint", "local_addr", "log_dir", "redirects", "tee", "numa_binding")
_WITHOUT_FIELD = (
    *("watchdog", "watchdog_conf", "health", "health_port", "health_conf"),
    *("hang_timeout", "hang_warmup", "hang_progress"),
)


class elastic_launch:  # noqa: N801 - torch's name
    """`elastic_launch(config, entrypoint)(*args)` runs the job and returns what the workers returned, by global rank.

    Args:
        config: what to launch.
        entrypoint: a function (picklable unless started by fork), or a command as text.

    Raises:
        ChildFailedError: the workers failed for good.
        SignalException: the program received one of the signals to handle; the workers are stopped.
        ConfigurationError, RendezvousError, UnkillableWorkersError.
    """

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str) -> None:
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: list[Any]) -> dict[int, Any]:
    """Run the job on this node; see `elastic_launch`."""
    manager = PluginManager.load(os.environ)
    settings = _with_join_timeout(config.settings(os.environ), config.rdzv_timeout, manager)
    origins = {name: found.origin for name, found in _variables(os.environ).items()}
    settings = without_missing(settings, manager, origins)
    _configure_metrics(config.metrics_cfg)
    if isinstance(entrypoint, str):
        command = replace(settings, no_python=True)
        entry = script_entry(command, entrypoint, tuple(map(str, args)), os.environ)
    else:
        entry = function_entry(settings, entrypoint, tuple(args))
    return run_job(settings, entry, manager, os.environ).return_values


def _configure_metrics(wanted: Mapping[str, str] | None) -> None:
    if wanted is None:
        return
    handlers = {"null": metrics.NullMetricHandler, "console": metrics.ConsoleMetricHandler}
    destination = wanted.get("destination", "null")
    if destination not in handlers:
        message = f"expected the destination {' or '.join(handlers)}, found {destination!r}; for another, call "
        raise ConfigurationError(Problem("metrics_cfg", message + "elastic_core.metrics.configure(handler) yourself"))
    metrics.configure(handlers[destination]())


def _with_join_timeout(settings: Settings, seconds: int, manager: PluginManager) -> Settings:
    """`rdzv_timeout` as an option of the backend, if the backend has it and `rdzv_configs` does not set it."""
    if seconds <= 0 or "join_timeout" in settings.rdzv_conf:
        return settings
    options = manager.select(RendezvousBackendRecord, settings.rdzv_backend).options
    if options is not None and all(option.name != "join_timeout" for option in options):
        return settings
    return replace(settings, rdzv_conf={**settings.rdzv_conf, "join_timeout": str(seconds)})


def run_job(
    settings: Settings,
    entry: Entry,
    manager: PluginManager,
    environ: Mapping[str, str],
    observers: tuple[Observer, ...] = (),
    options: Mapping[str, object] | None = None,
) -> RunResult:
    """Compose an agent, run it with the signals handled, and end everything.

    Raises:
        ChildFailedError: the workers failed for good. Other errors as for `elastic_launch`.
    """
    with (
        composed(settings, entry, manager, environ, observers, options) as agent,
        _signals_to(agent, settings.signals_to_handle),
    ):
        result = agent.run(settings.role)
    if result.is_failed():
        error = ChildFailedError(entry.name, result.failures)
        _hand_up(error.get_first_failure()[1], environ)
        raise error
    return result


@contextlib.contextmanager
def _signals_to(agent: LocalElasticAgent, signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Give signals to the agent for the time of the context. Python allows signal handlers in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in signals}
    # A SIGHUP that is ignored at the start stays ignored: so nohup protects a job.
    taken = [s for s in signals if not (s is signal.SIGHUP and before[s] is signal.SIG_IGN)]
    try:
        for signum in taken:
            signal.signal(signum, lambda number, _frame: agent.receive_signal(number))
        yield
    finally:
        for signum in taken:
            # None: the handler was not installed from Python, and Python cannot put it back.
            signal.signal(signum, signal.SIG_DFL if before[signum] is None else before[signum])


def _hand_up(failure: ProcessFailure, environ: Mapping[str, str]) -> None:
    """Write the first failure into the error file of this agent, if it is itself a worker of another agent. Only into a
    regular file: a pipe might have no reader, and the job is over. An error of writing hides no failure."""
    path = environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": failure.message, "timestamp": str(int(failure.timestamp))}
    data = failure.error_file_data or {"message": {"message": failure.reason, "extraInfo": extra}}
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        text = json.dumps(data)
        with open(path, "w", opener=_open_file) as file:
            file.write(text)


def _open_file(path: str, flags: int) -> int:
    """For `open`: truncates a regular file, and raises OSError for anything else."""
    fd = os.open(path, (flags & ~os.O_TRUNC) | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        os.ftruncate(fd, 0)
        return fd
    os.close(fd)
    raise OSError(f"expected a file at {path}")

"""Worker processes without an agent: `start_processes` and what belongs to it, with torch's names.

A program that wants ranks, a rendezvous and restarts uses `elastic_core.launch`.
"""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.agent.event_queue import EventQueue
from elastic_core.agent.stopping import GroupStop
from elastic_core.clock import Duration, SystemClock, later
from elastic_core.config.values import Std
from elastic_core.error_file import VARIABLE, ErrorHandler, get_error_handler, record
from elastic_core.errors import ChildFailedError, ProcessFailure, SignalException
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs, placer_of, to_map
from elastic_core.workers.numa import NO_BINDING, Binding, mode_of, read_machine
from elastic_core.workers.process import CommandStarter
from elastic_core.workers.streams import OutputPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elastic_core.interfaces.workers import Child, Launch, Starter

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ErrorHandler",
    "LogsDest",
    "LogsSpecs",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "get_error_handler",
    "record",
    "start_processes",
    "to_map",
]

_KILL_TIMEOUT: Duration = 10.0


@dataclass
class RunProcsResult:
    """How the processes ended; keys are local ranks.

    `return_values` are those of functions, None for commands. `failures` has those that failed by themselves; the
    others were stopped then. `stdouts` and `stderrs` have the paths of the files, empty for a stream without one.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether a process failed."""
        return bool(self.failures)


class PContext:
    """Processes that run together; made by `start_processes`. For one thread."""

    def __init__(self, name: str, starters: Mapping[int, Starter], specs: _Asked, policy: GroupPolicy) -> None:
        self.name = name
        self._size = len(starters)
        self._clock = SystemClock()
        self._specs = specs
        self._events = EventQueue(self._clock)
        self._processes = LocalWorkers(_ByRank(starters), policy, os.environ, self._clock)
        self._stop = GroupStop(self._processes, self._events, self._clock, _KILL_TIMEOUT)
        self._pids: dict[int, int] = {}
        self._result: RunProcsResult | None = None

    def start(self) -> None:
        """Start all processes, or none. Called by `start_processes`; once.

        Raises:
            ConfigurationError: they cannot be started.
        """
        ranks = tuple(WorkerRanks(rank, rank, rank) for rank in range(self._size))
        plan = RoundPlan(
            round=1,
            run_id=self.name,
            node=socket.gethostname(),
            role=self.name,
            group_rank=0,
            group_world_size=1,
            world_size=self._size,
            role_world_size=self._size,
            master_addr="",
            master_port=0,
            use_agent_store=False,
            restart_count=0,
            max_restarts=0,
            ranks=ranks,
        )
        try:
            self._pids = self._processes.start(plan)
        except BaseException:
            self.close()
            raise

    def pids(self) -> dict[int, int]:
        """Process ids by local rank."""
        return dict(self._pids)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have ended, or one has failed; the others are stopped then, and everything is released.

        Args:
            timeout: seconds; 0 only looks, less than 0 waits for ever.
            period: not used: the end of a process is an event.

        Returns None if processes still run after `timeout`.
        """
        until = later(self._clock.now(), timeout) if timeout >= 0 else None
        while self._result is None:
            self._processes.reap()
            if self._processes.failures() or not self._processes.running():
                self.close()
            elif until is not None and self._clock.now() >= until:
                return None
            else:
                self._events.wait(self._processes.sentinels(), until)
        return self._result

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """End what still runs, and release everything. Idempotent.

        Args:
            death_sig: None: SIGTERM.
            timeout: seconds from there to SIGKILL.

        Raises:
            UnkillableWorkersError: a process survived SIGKILL.
        """
        try:
            if self._result is None:
                self._end(death_sig or signal.SIGTERM, timeout)
        finally:
            self._events.close()
            self._processes.close()

    def _end(self, death_sig: signal.Signals, timeout: float) -> None:
        self._stop.stop(death_sig, timeout)
        dest, values = self._specs.dest, self._processes.return_values()
        # Nobody but the program knows their global ranks.
        failures = {rank: replace(failure, global_rank=-1) for rank, failure in self._processes.failures().items()}
        self._result = RunProcsResult({} if failures else values, failures, dest.stdouts, dest.stderrs)


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: dict[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Start a process for each of `args`. If this program is killed, they end too.

    Args:
        name: of the group, for prefixes and reports.
        entrypoint: a function, or a command.
        args: its arguments by local rank: 0, 1, ...
        envs: variables by local rank, beside those of this process.
        logs_specs: where output goes.
        log_line_prefixes: by local rank, for lines of `tee`; None: name and rank.
        start_method: of functions: spawn, fork or forkserver.
        numa_options: torch's `NumaOptions`, or a word of `--numa-binding`.
        duplicate_stdout_filters, duplicate_stderr_filters: lines with one of these texts also go into one file.

    Raises:
        RuntimeError: the keys of `args` or `envs` are not the local ranks.
        ConfigurationError: the processes cannot be started.
    """
    ranks = set(range(len(args)))
    if not args or set(args) != ranks or set(envs) != ranks:
        found = f"{sorted(args)} and {sorted(envs)}"
        raise RuntimeError(f"expected args and envs for the same local ranks from 0 on, found {found}")
    specs = _Asked(logs_specs)
    output = OutputPolicy(
        prefix_template=log_line_prefixes or None,
        stdout_filters=tuple(duplicate_stdout_filters or ()),
        stderr_filters=tuple(duplicate_stderr_filters or ()),
        placer=placer_of(specs),
    )
    mode = mode_of(numa_options)
    policy = GroupPolicy(output, _Given(envs), Binding(mode, read_machine()) if mode else NO_BINDING)
    context = PContext(name, {rank: _starter(entrypoint, args[rank], start_method) for rank in ranks}, specs, policy)
    context.start()
    return context


def _starter(entrypoint: Callable[..., Any] | str, args: tuple[Any, ...], method: str) -> Starter:
    if isinstance(entrypoint, str):
        return CommandStarter((entrypoint, *map(str, args)))
    from elastic_core.workers.functions import FunctionStarter  # multiprocessing is not free to import

    return FunctionStarter(entrypoint, args, method)


class _Asked:
    """Remembers what the object has said."""

    def __init__(self, specs: LogsSpecs) -> None:
        self._specs = specs
        self.dest = LogsDest()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.dest = self._specs.reify(envs)
        return self.dest


@dataclass(frozen=True)
class _Given:
    """Environments that the program gives."""

    envs: Mapping[int, Mapping[str, str]]

    def __call__(
        self, plan: RoundPlan, ranks: WorkerRanks, parent: Mapping[str, str], error_file: str
    ) -> dict[str, str]:
        return {**parent, **self.envs[ranks.local], VARIABLE: error_file}


@dataclass(frozen=True)
class _ByRank:
    """A starter for each local rank, as one."""

    starters: Mapping[int, Starter]

    def start(self, launch: Launch) -> Child:
        return self.starters[launch.local_rank].start(launch)

    def result(self, launch: Launch) -> object:
        return self.starters[launch.local_rank].result(launch)

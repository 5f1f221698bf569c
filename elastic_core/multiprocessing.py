"""Starts worker processes without an agent. `start_processes` and the related classes have torch's names.

Programs that need ranks, a rendezvous and restarts should use `elastic_core.launch`.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastic_core.agent.event_queue import EventQueue
from elastic_core.agent.stopping import GroupStop
from elastic_core.clock import Duration, SystemClock, later
from elastic_core.error_file import VARIABLE, ErrorHandler, get_error_handler, record
from elastic_core.errors import ChildFailedError, ProcessFailure, SignalException
from elastic_core.interfaces.workers import RoundPlan, WorkerRanks
from elastic_core.log import show_unless_logged
from elastic_core.parsing import Std
from elastic_core.workers.group import GroupPolicy, LocalWorkers
from elastic_core.workers.logs_specs import DefaultLogsSpecs, LogsDest, LogsSpecs, placer_of, to_map
from elastic_core.workers.numa import Binding, mode_of, read_machine
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
    """The results of a group of processes. The keys of all fields are local ranks.

    `return_values` contains the values that functions returned (None for commands). `failures` contains only processes
    that failed on their own. `stdouts` and `stderrs` contain the paths of the output files; a path is empty if there is
    no file.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether any process failed."""
        return bool(self.failures)


class PContext:
    """A group of processes that `start_processes` created. Only one thread may use it."""

    def __init__(self, name: str, starters: Mapping[int, Starter], specs: _Asked, policy: GroupPolicy) -> None:
        self.name = name
        self._size = len(starters)
        self._clock = SystemClock()
        self._specs = specs
        self._events = EventQueue(self._clock)
        self._processes = LocalWorkers(_ByRank(starters), policy, os.environ)
        self._stop = GroupStop(self._processes, self._events, self._clock, _KILL_TIMEOUT)
        self._pids: dict[int, int] = {}
        self._result: RunProcsResult | None = None
        self._closing = False

    def start(self) -> None:
        """Start all processes. If one of them cannot be started, no process is left running. `start_processes` calls
        this method once.

        Raises:
            ConfigurationError: the processes cannot be started.
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
        atexit.register(self._close_at_exit, os.getpid())
        try:
            self._pids = self._processes.start(plan)
        except BaseException:
            self.close()
            raise

    def pids(self) -> dict[int, int]:
        """Return the process ids by local rank."""
        return dict(self._pids)

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all processes have ended, and release all resources. When a process fails, stop all remaining
        ones.

        Args:
            timeout: seconds to wait. 0 returns immediately, and a negative number waits forever.
            period: ignored, because there is no polling.

        Returns None if processes are still running after `timeout`.
        """
        until = later(self._clock.now(), timeout) if timeout >= 0 else None
        while self._result is None:
            self._processes.reap()
            if self._processes.failures() or not self._processes.running():
                self.close()
            elif until is not None and self._clock.now() >= until:
                return None
            else:
                try:
                    self._events.wait(self._processes.sentinels(), until)
                except (OSError, ValueError, RuntimeError):
                    if self._result is None:  # otherwise, a signal handler has called `close`
                        raise
        return self._result

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """End all running processes and release all resources. Idempotent.

        Args:
            death_sig: the first signal to send (default: SIGTERM).
            timeout: seconds from that signal to SIGKILL.

        Raises:
            UnkillableWorkersError: a process survived SIGKILL.
        """
        if self._closing:  # this call is a signal handler's
            return
        self._closing = True
        try:
            if self._result is None:
                self._end(death_sig or signal.SIGTERM, timeout)
        finally:
            atexit.unregister(self._close_at_exit)
            self._events.close()
            self._processes.close()
            self._closing = False

    def _close_at_exit(self, owner: int) -> None:
        """End the processes of a program that exits without waiting for them, unless this is a fork of the program. A
        Ctrl-C has not reached them."""
        if os.getpid() == owner:
            self.close()

    def _end(self, death_sig: signal.Signals, timeout: float) -> None:
        self._stop.stop(death_sig, timeout)
        dest, values = self._specs.dest, self._processes.return_values()
        # Only the program knows the global ranks.
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
    """Start one process for each entry in `args`. If this program exits or is killed, the processes are
    ended as well.

    Args:
        name: the group's name, for prefixes and reports.
        entrypoint: a function or a command.
        args: the arguments by local rank: 0, 1, ...
        envs: additional environment variables by local rank.
        logs_specs: the destinations of output.
        log_line_prefixes: the prefixes for `tee` and filtered lines by local rank (default: name and rank).
        start_method: for functions: spawn, fork or forkserver.
        numa_options: torch's `NumaOptions`, or a value of `--numa-binding`.
        duplicate_stdout_filters, duplicate_stderr_filters: lines that contain one of these strings are also copied to
            one file for all processes.

    Raises:
        RuntimeError: the keys of `args` or `envs` are not the local ranks 0, 1, ...
        ConfigurationError: the processes cannot be started.
    """
    ranks = set(range(len(args)))
    if not args or set(args) != ranks or set(envs) != ranks:
        found = f"{sorted(args)} and {sorted(envs)}"
        raise RuntimeError(f"args and envs must have the same keys, the local ranks 0, 1, ...; found {found}")
    show_unless_logged()
    specs = _Asked(logs_specs)
    output = OutputPolicy(
        prefix_template=log_line_prefixes or None,
        stdout_filters=tuple(duplicate_stdout_filters or ()),
        stderr_filters=tuple(duplicate_stderr_filters or ()),
        placer=placer_of(specs),
    )
    mode = mode_of(numa_options)

    def environment(plan: RoundPlan, ranks: WorkerRanks, parent: Mapping[str, str], error_file: str) -> dict[str, str]:
        return {**parent, **envs[ranks.local], VARIABLE: error_file}

    policy = GroupPolicy(output, environment, Binding(mode, read_machine()) if mode else None)
    context = PContext(name, {rank: _starter(entrypoint, args[rank], start_method) for rank in ranks}, specs, policy)
    context.start()
    return context


def _starter(entrypoint: Callable[..., Any] | str, args: tuple[Any, ...], method: str) -> Starter:
    if isinstance(entrypoint, str):
        return CommandStarter((entrypoint, *map(str, args)))
    from elastic_core.workers.functions import FunctionStarter  # multiprocessing takes time to import

    return FunctionStarter(entrypoint, args, method)


class _Asked:
    """Passes `reify` calls on to the wrapped specs, and keeps the last result."""

    def __init__(self, specs: LogsSpecs) -> None:
        self._specs = specs
        self.dest = LogsDest()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.dest = self._specs.reify(envs)
        return self.dest


@dataclass(frozen=True)
class _ByRank:
    """A starter that uses a separate starter for each local rank."""

    starters: Mapping[int, Starter]

    def start(self, launch: Launch) -> Child:
        return self.starters[launch.local_rank].start(launch)

    def result(self, launch: Launch) -> object:
        return self.starters[launch.local_rank].result(launch)
